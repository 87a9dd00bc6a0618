import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from argosy.errors import TraceFileError
from argosy.sim.random_streams import RandomStreams
from argosy.sim.workload.build import build_source
from argosy.sim.workload.config import WorkloadConfig
from argosy.sim.workload.recorded_trace import header_line, request_line
from argosy.sim.workload.trace_request import Segment, Source, TraceRequest

Play = Callable[..., list[tuple[TraceRequest, float]]]

CHAT: dict[str, Any] = {
    "name": "chat",
    "arrivals": {"kind": "poisson", "rate_per_s": 4},
    "requests": {"user_tokens": {"kind": "lognormal", "mean": 300, "cv": 1}, "output_tokens": 80},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"timestamp": 1000 * n, "input_length": 600, "output_length": 10 + n, "hash_ids": [0, n + 1]} for n in range(10)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def source(folder: Path, *sources: dict[str, Any], seed: int = 1, **workload: Any) -> Source:
    return build_source(WorkloadConfig.from_mapping({"sources": list(sources), **workload}), RandomStreams(seed), folder)


def trace(**settings: Any) -> dict[str, Any]:
    own = {key: settings.pop(key) for key in ("arrivals", "closed_loop", "rate_factor", "start_s") if key in settings}
    return {"name": "t", "trace": {"path": "t.jsonl", **settings}, **own}


def times(built: Source) -> list[float]:
    return [request.arrival_s for request in built]


def test_a_trace_as_it_is(folder: Path):
    requests = list(source(folder, trace()))
    assert [request.request_id for request in requests] == [f"t/{n}" for n in range(10)]
    assert [request.arrival_s for request in requests] == list(range(10))
    assert [(request.num_prompt_tokens, request.output_tokens) for request in requests] == [(600, 10 + n) for n in range(10)]
    assert len({request.segments[0] for request in requests}) == 1


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"from_s": 2, "to_s": 5}, [0, 1, 2]),
        ({"from_s": 8}, [0, 1]),
        ({"from_s": 2, "to_s": 4, "repeat": {"times": 3}}, [0, 1, 2, 3, 4, 5]),
        ({"from_s": 2, "to_s": 4, "repeat": {"times": 2, "period_s": 10}}, [0, 1, 10, 11]),
        ({"from_s": 8, "repeat": {"times": 2}}, [0, 1, 2, 3]),
        ({"from_s": 8, "repeat": {"times": 2, "period_s": 10}}, [0, 1, 10, 11]),
        ({"to_s": 3, "rate_factor": 4}, [0, 0.25, 0.5]),
        ({"to_s": 3, "rate_factor": 4, "start_s": 7}, [7, 7.25, 7.5]),
        ({"to_s": 3, "arrivals": {"kind": "constant", "rate_per_s": 10}}, [0.1, 0.2, 0.3]),
        ({"to_s": 3, "arrivals": {"kind": "constant", "rate_per_s": 10}, "rate_factor": 2}, [0.05, 0.1, 0.15]),
    ],
)
def test_time_is_cut_repeated_scaled_replaced_and_moved(folder: Path, settings: dict[str, Any], wanted: list[float]):
    assert times(source(folder, trace(**settings))) == pytest.approx(wanted)


def test_lengths_are_scaled_and_then_cut(folder: Path):
    requests = list(source(folder, trace(prompt_factor=0.5, output_factor=2, max_prompt_tokens=260, max_output_tokens=30)))
    assert [request.num_prompt_tokens for request in requests] == [260] * 10
    assert [request.output_tokens for request in requests] == [min(2 * (10 + n), 30) for n in range(10)]
    prompts = [request.token_ids(50_000) for request in requests]
    assert all(prompt[:256] == prompts[0][:256] and prompt[256:] != prompts[0][256:] for prompt in prompts[1:])


@pytest.mark.parametrize(
    ("settings", "prompt_tokens", "output_tokens"),
    [
        ({"prompt_factor": 2}, 1200, 19),
        ({"output_factor": 2}, 600, 38),
        ({"max_prompt_tokens": 100}, 100, 19),
        ({"max_output_tokens": 15}, 600, 15),
    ],
)
def test_each_length_has_its_own_setting(folder: Path, settings: dict[str, Any], prompt_tokens: int, output_tokens: int):
    last = list(source(folder, trace(**settings)))[-1]
    assert (last.num_prompt_tokens, last.output_tokens) == (prompt_tokens, output_tokens)


@pytest.mark.parametrize("same_content", [True, False])
def test_passes_have_their_own_texts_unless_told_otherwise(folder: Path, same_content: bool):
    requests = list(source(folder, trace(repeat={"times": 2, "same_content": same_content})))
    assert len({request.request_id for request in requests}) == 20
    assert (requests[0].segments == requests[10].segments) is same_content
    assert requests[0].segments[0] == requests[1].segments[0]


def test_sources_of_one_trace_have_their_own_texts(folder: Path):
    first, second = trace(), {**trace(), "name": "u"}
    contents = {name: set() for name in "tu"}
    for request in source(folder, first, second):
        contents[request.request_id[0]] |= {segment.content_id for segment in request.segments}
    assert contents["t"].isdisjoint(contents["u"])


def test_tags_are_the_sources_or_the_traces(tmp_path: Path):
    own = TraceRequest("a", 0.0, (Segment(1, 1),), 1, "s", "acme", 3, 9.0)
    (tmp_path / "r.ndjson").write_text(header_line() + request_line(own))
    plain = {"name": "plain", "trace": {"path": "r.ndjson"}}
    stated = {**plain, "name": "stated", "tenant": "other", "priority": 0, "timeout_s": 1}
    first, second = source(tmp_path, plain, stated)
    assert (first.session_id, first.tenant, first.priority, first.timeout_s) == ("s", "acme", 3, 9.0)
    assert (second.session_id, second.tenant, second.priority, second.timeout_s) == ("s", "other", 0, 1.0)


def test_a_source_changes_no_other_one(folder: Path):
    def of(name: str, built: Source) -> list[TraceRequest]:
        return [request for request in built if request.request_id.startswith(f"{name}/")]

    alone = of("chat", source(folder, CHAT, duration_s=60))
    busy = {**CHAT, "name": "busy", "arrivals": {"kind": "gamma", "rate_per_s": 50, "cv": 3}}
    assert of("chat", source(folder, busy, CHAT, trace(), duration_s=60)) == alone
    assert 240 - 4 * 16 < len(alone) < 240 + 4 * 16
    other = of("busy", source(folder, {**CHAT, "name": "busy"}, duration_s=60))
    assert times(other) != times(alone)


def test_a_seed_repeats_all_and_another_nothing(folder: Path):
    assert list(source(folder, CHAT, duration_s=60)) == list(source(folder, CHAT, duration_s=60))
    assert times(source(folder, CHAT, duration_s=60)) != times(source(folder, CHAT, duration_s=60, seed=2))


@pytest.mark.parametrize("kind", ["constant", "poisson", "gamma", "on_off", "seasonal"])
def test_every_kind_of_arrival_keeps_its_rate(folder: Path, kind: str):
    settings = {
        "constant": {"rate_per_s": 5},
        "poisson": {"rate_per_s": 5},
        "gamma": {"rate_per_s": 5, "cv": 0.5},
        "on_off": {"on_rate_per_s": 9, "off_rate_per_s": 1, "mean_on_s": 1, "mean_off_s": 1},
        "seasonal": {"rate_per_s": 5, "seasons": [{"kind": "sinusoid", "period_s": 100, "amplitude": 0.5}]},
    }[kind]
    chat = {**CHAT, "arrivals": {"kind": kind, **settings}, "rate_factor": 2}
    # 10/s over 1000 s. Bursts have the largest variance over mean: 1 + 2 x 64 / (4 x 10 / 2) = 7.4.
    assert len(times(source(folder, chat, duration_s=1000))) == pytest.approx(10_000, abs=4 * (7.4 * 10_000) ** 0.5)


def test_a_closed_loop_over_a_trace(folder: Path, play: Play):
    built = source(folder, trace(closed_loop={"clients": 2, "think_s": 1, "ramp_s": 2}))
    served = play(built, service_s=3.0)
    assert [request.arrival_s for request, _ in served] == [0, 1, 4, 5, 8, 9, 12, 13, 16, 17]
    assert [request.request_id for request, _ in served] == [f"t/{n}" for n in range(10)]


def test_everything_at_once_ends_in_time(folder: Path, play: Play):
    talk = {
        **CHAT,
        "name": "talk",
        "requests": {
            "lengths_from": "t.jsonl",
            "system_prompts": {"count": 5, "tokens": {"kind": "uniform", "low": 10, "high": 20}},
            "conversation": {"turns": 3, "think_s": {"kind": "exponential", "mean": 2}},
        },
    }
    loop = {"name": "loop", "requests": {"user_tokens": 5, "output_tokens": 5}, "closed_loop": {"clients": 3}, "start_s": 10}
    built = source(folder, CHAT, talk, loop, trace(repeat={"times": 100}), duration_s=100)
    served = [request for request, _ in play(built, service_s=0.5)]
    assert all(request.arrival_s < 100 for request in served)
    by_source = Counter(request.request_id.partition("/")[0] for request in served)
    assert by_source["t"] == 100
    assert by_source["loop"] == 3 * 2 * 90
    # Poisson(400), thrice as many turns less those cut off by the end.
    assert 400 - 80 < by_source["chat"] < 400 + 80
    assert 3 * 320 - 100 < by_source["talk"] < 3 * 480
    assert len({request.request_id for request in served}) == len(served)


def test_a_number_of_requests_ends_it(folder: Path, play: Play):
    loop = {"name": "loop", "requests": {"user_tokens": 5, "output_tokens": 5}, "closed_loop": {"clients": 3}}
    assert len(play(source(folder, loop, max_requests=50))) == 50
    assert len(times(source(folder, CHAT, max_requests=50))) == 50


def test_a_missing_trace_is_known_before_the_run(folder: Path):
    for missing in (
        {"name": "t", "trace": {"path": "absent.jsonl"}},
        {"name": "t", "trace": {"path": "absent.jsonl", "repeat": {"times": 2}}},
        {**CHAT, "requests": {"lengths_from": "absent.jsonl"}},
        {**CHAT, "requests": {"user_tokens": 1, "output_tokens": {"kind": "trace", "path": "absent.jsonl", "of": "output"}}},
        {
            "name": "x",
            "requests": {"user_tokens": 1, "output_tokens": 1},
            "closed_loop": {"clients": 1, "think_s": {"kind": "trace", "path": "absent.jsonl", "of": "output"}},
        },
    ):
        with pytest.raises(TraceFileError, match=r"absent.jsonl cannot be read"):
            source(folder, missing, duration_s=1)


def test_a_wrong_line_is_named_when_it_is_reached(folder: Path):
    (folder / "t.jsonl").write_text((folder / "t.jsonl").read_text() + "\n{}\n")
    built = iter(source(folder, trace()))
    # One request is read ahead of each source.
    assert [next(built).request_id for _ in range(9)] == [f"t/{n}" for n in range(9)]
    with pytest.raises(TraceFileError, match="line 11: has no timestamp"):
        list(built)
