"""A fixed number of clients, each of whom waits for its answer before it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from argosy.sim.random_streams import RandomStreams
from argosy.sim.workload.distributions import Distribution
from argosy.sim.workload.trace_request import Source, TraceRequest


class ClosedLoop:
    """`num_clients` clients take requests from `source` in its order, whatever their arrival times say.

    Client i of n sends its first request at i/n of `ramp_s`, and the next one `think_s` after the end of the last. Where the
    source reacts itself, as a conversation does, the client stays with what follows until nothing does.

    Args:
        name: names the clients' random streams, one each, so that a client's times to think do not depend on the others.
    """

    def __init__(
        self, name: str, source: Source, num_clients: int, think_s: Distribution, ramp_s: float, streams: RandomStreams
    ) -> None:
        self._source = source
        self._waiting = iter(source)
        self._num_clients, self._ramp_s, self._think_s = num_clients, ramp_s, think_s
        self._rngs = [streams.python(f"workload/{name}/client/{number}") for number in range(num_clients)]
        self._client_of: dict[str, int] = {}

    def __iter__(self) -> Iterator[TraceRequest]:
        """The first request of each client."""
        for client in range(self._num_clients):
            request = self._take(client, self._ramp_s * client / self._num_clients)
            if request is None:
                return
            yield request

    def on_finish(self, request: TraceRequest, now_s: float) -> Iterable[TraceRequest]:
        """What the client whose request ended does next."""
        client = self._client_of.pop(request.request_id)
        following = list(self._source.on_finish(request, now_s))
        for item in following:
            self._client_of[item.request_id] = client
        if following:
            return following
        taken = self._take(client, now_s + self._think_s.draw(self._rngs[client]))
        return () if taken is None else (taken,)

    def _take(self, client: int, arrival_s: float) -> TraceRequest | None:
        request = next(self._waiting, None)
        if request is None:
            return None
        self._client_of[request.request_id] = client
        return request.arriving_at(arrival_s)
