from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from argosy.sim.workload.merging import Merged
from argosy.sim.workload.trace_request import OpenLoop, Segment, TraceRequest

Play = Callable[..., list[tuple[TraceRequest, float]]]
TIMES = st.lists(st.integers(0, 20).map(float), max_size=10).map(sorted)


def requests(name: str, times: list[float]) -> list[TraceRequest]:
    return [TraceRequest(f"{name}/{n}", time_s, (Segment(n, 1),), 1) for n, time_s in enumerate(times)]


@given(times=st.lists(TIMES, min_size=1, max_size=4))
def test_all_requests_in_order_at_equal_times_by_source(times: list[list[float]]):
    sources = {f"s{k}": OpenLoop(requests(f"s{k}", own)) for k, own in enumerate(times)}
    merged = [(request.arrival_s, *request.request_id.split("/")) for request in Merged(sources)]
    assert merged == sorted(
        ((time_s, f"s{k}", str(n)) for k, own in enumerate(times) for n, time_s in enumerate(own)),
        key=lambda item: (item[0], item[1], int(item[2])),
    )


def test_it_reads_one_request_ahead_of_each_source():
    def endless(name: str):
        for n in range(1_000_000):
            assert n < 3, "read too far ahead"
            yield TraceRequest(f"{name}/{n}", float(n), (Segment(n, 1),), 1)

    merged = iter(Merged({"a": OpenLoop(endless("a")), "b": OpenLoop(endless("b"))}))
    assert [next(merged).request_id for _ in range(4)] == ["a/0", "b/0", "a/1", "b/1"]


def test_what_follows_comes_from_the_source_of_the_request():
    class Named(OpenLoop):
        def __init__(self, name: str) -> None:
            super().__init__([])
            self.name = name

        def on_finish(self, request: TraceRequest, now_s: float) -> list[TraceRequest]:
            return requests(f"{self.name} after {request.request_id} at {now_s}", [now_s])

    merged = Merged({"a": Named("A"), "b": Named("B")})
    (request,) = merged.on_finish(requests("b/2", [0])[0], 7.0)
    assert request.request_id == "B after b/2/0 at 7.0/0"
