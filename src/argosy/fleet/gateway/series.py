"""Values behind metrics, for one thread that updates and any that reads.

prometheus_client's own counters take a lock at every step and its histograms several: a dozen of them per request cost more
than the rest of the gateway's bookkeeping. Here the event loop alone writes, and a scrape copies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from argosy.fleet.gateway.metric_list import MetricSpec


class Single:
    """A counter's or a gauge's one value."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Distribution:
    """A histogram's buckets: `counts[i]` values are within `bounds[i]` and above the bound before; the last is open."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count `value`."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Family:
    """A metric with its series by label values."""

    def __init__(self, spec: MetricSpec) -> None:
        self.spec = spec
        self._series: dict[tuple[str, ...], Single | Distribution] = {}
        if not spec.labels and not spec.is_live:
            self.series(())

    def series(self, labels: tuple[str, ...]) -> Single | Distribution:
        """The series of these label values, made if it is not there."""
        found = self._series.get(labels)
        if found is None:
            found = Distribution(self.spec.buckets) if self.spec.kind == "histogram" else Single()
            self._series[labels] = found
        return found

    def exposed(self) -> Metric:
        """A copy in prometheus_client's form."""
        spec = self.spec
        # `tuple` copies in one step of the interpreter, so that a thread that scrapes meets no dict that changes its size.
        series = tuple(self._series.items())
        if spec.kind == "histogram":
            histogram = HistogramMetricFamily(spec.name, spec.text, labels=spec.labels)
            for labels, one in series:
                assert isinstance(one, Distribution)
                histogram.add_metric(labels, _cumulative(one), one.total)
            return histogram
        make = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
        family = make(spec.name, spec.text, labels=spec.labels)
        for labels, one in series:
            assert isinstance(one, Single)
            family.add_metric(labels, one.value)
        return family


def _cumulative(distribution: Distribution) -> list[tuple[str, float]]:
    counts, reached, buckets = list(distribution.counts), 0, []
    for bound, count in zip((*distribution.bounds, float("inf")), counts, strict=True):
        reached += count
        buckets.append((floatToGoString(bound), float(reached)))  # type: ignore[no-untyped-call]
    return buckets


class SeriesCollector(Collector):
    """Gives families to a registry when it is scraped."""

    def __init__(self, families: Callable[[], Iterable[Family]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """All families, as they are at this moment."""
        for family in self._families():
            yield family.exposed()

    def describe(self) -> Iterable[Metric]:
        """None by name: nothing else shares the registry."""
        return ()
