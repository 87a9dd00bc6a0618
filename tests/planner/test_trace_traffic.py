import pytest

from argosy.errors import ConfigError
from argosy.planner.trace_traffic import trace_traffic
from argosy.sim.workload.trace_request import Segment, TraceRequest


def request(arrival_s: float, output_tokens: int, *segments: tuple[int, int]) -> TraceRequest:
    return TraceRequest(
        f"{arrival_s}", arrival_s, tuple(Segment(content, tokens) for content, tokens in segments), output_tokens
    )


def plain(arrival_s: float, prompt_tokens: int, output_tokens: int) -> TraceRequest:
    return request(arrival_s, output_tokens, (round(arrival_s * 1000), prompt_tokens))


def test_traffic_has_the_rate_lengths_and_reuse_of_the_trace():
    requests = [request(float(i), 10 + i, (0, 512), (1 + i, 512)) for i in range(101)]
    traffic = trace_traffic(requests)
    assert traffic.requests_per_s == pytest.approx(1)
    assert traffic.prompt.mean == 1024
    assert traffic.output.mean == pytest.approx(60)
    # All but the first request find block 0, which is half of the prompt.
    assert traffic.prefix.share == pytest.approx(100 / 101 / 2)
    assert traffic.prefix.resident_tokens == 512
    assert traffic.burstiness == pytest.approx(0, abs=1e-9)
    assert trace_traffic(requests, scale=3).requests_per_s == pytest.approx(3)


def test_bursts_show_and_the_busiest_minute_can_be_planned_for():
    quiet = [plain(float(i * 10), 100, 10) for i in range(60)]
    burst = [plain(600 + i * 0.1, 100, 10) for i in range(600)]
    quiet_after = [plain(660 + i * 10.0, 100, 10) for i in range(60)]
    requests = [*quiet, *burst, *quiet_after]
    mean, peak = trace_traffic(requests), trace_traffic(requests, at_peak=True)
    assert mean.burstiness > 10
    assert peak.requests_per_s == pytest.approx(10, rel=0.02)
    assert mean.requests_per_s == pytest.approx(719 / 1250, rel=0.01)


@pytest.mark.parametrize("requests", [[plain(0, 5, 5)], [plain(3, 5, 5), plain(3, 5, 5)]])
def test_a_trace_without_time_has_no_rate(requests: list[TraceRequest]):
    with pytest.raises(ConfigError, match="different times"):
        trace_traffic(requests)


def test_reuse_stops_at_the_first_content_not_seen_and_leaves_one_token_to_compute():
    traffic = trace_traffic(
        [request(0, 1, (1, 10), (2, 10)), request(1, 1, (1, 10), (3, 10), (2, 10)), request(2, 1, (1, 10), (2, 10))]
    )
    # Of 70 tokens the second request finds the first 10, the third all but the token that is always computed.
    assert traffic.prefix.share == pytest.approx((10 + 19) / 70)
    assert traffic.prefix.resident_tokens == 20


def test_a_content_seen_in_part_is_found_in_part():
    traffic = trace_traffic([request(0, 1, (1, 6)), request(1, 1, (1, 10), (2, 5))])
    assert traffic.prefix.share == pytest.approx(6 / 21)
    assert traffic.prefix.resident_tokens == 6


def test_a_recorded_answer_is_found_by_the_next_turn():
    first = TraceRequest("a", 0, (Segment(1, 10),), 6, output_segments=(Segment(1, 6, start=10),))
    traffic = trace_traffic([first, request(1, 1, (1, 16), (2, 4))])
    assert traffic.prefix.share == pytest.approx(16 / 30)
    assert traffic.prefix.resident_tokens == 16
