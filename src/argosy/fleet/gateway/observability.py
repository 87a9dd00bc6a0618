"""What a gateway tells of itself: metrics, access log, traces, alerts, made from its configuration."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from argosy.fleet.gateway.access_log import AccessLog
from argosy.fleet.gateway.alert_watch import AlertWatch
from argosy.fleet.gateway.backends import BackendPools
from argosy.fleet.gateway.config import GatewayConfig
from argosy.fleet.gateway.dispatch import PoolDispatchers
from argosy.fleet.gateway.line_writer import LineWriter
from argosy.fleet.gateway.live_readings import QuotaUse, backend_readings, queue_readings
from argosy.fleet.gateway.metrics import GatewayMetrics
from argosy.fleet.gateway.stages import ExchangeObserver
from argosy.fleet.gateway.tracing import RequestTracing, make_provider
from argosy.observe.metrics import render


class Observability:
    """Made with the gateway, closed after its last request.

    Attributes:
        observers: of the pipeline; traces come first, since they say under which name a backend is called.
        metrics, alerts: parts of them.
    """

    def __init__(
        self, config: GatewayConfig, secrets: Mapping[str, str], *, clock: Callable[[], float], version: str
    ) -> None:
        """Open the access log and the way to the collector.

        Raises:
            ConfigError: the log cannot be opened, or traces cannot be sent.
        """
        settings = config.observability
        self._clock = clock
        names = [name for model in config.models for name in (model.name, *model.aliases)]
        self.metrics = GatewayMetrics(version=version, max_label_values=settings.max_label_values, models=names)
        quotas = QuotaUse(clock)
        self.alerts = AlertWatch(settings.alerts, clock, quotas)
        self._tracing: RequestTracing | None = None
        self._writer: LineWriter | None = None
        observers: list[ExchangeObserver] = []
        if settings.tracing is not None:
            headers = secrets[settings.tracing.headers_env] if settings.tracing.headers_env else ""
            self._tracing = RequestTracing(make_provider(settings.tracing, headers, version), clock, time.time_ns)
            observers.append(self._tracing)
        observers += [self.metrics, quotas, self.alerts]
        self.metrics.add_source(self.alerts.readings)
        if settings.access_log is not None:
            self._writer = LineWriter.to(settings.access_log, max_lines=settings.access_log_lines)
            access_log = AccessLog(self._writer, time.time)
            observers.append(access_log)
            self.metrics.add_source(access_log.readings)
        self.observers: Sequence[ExchangeObserver] = tuple(observers)

    def add_pools(self, pools: BackendPools, dispatcher: PoolDispatchers, names: Callable[[], Sequence[str]]) -> None:
        """Show backends and queues among the metrics; `names` gives the pools of the moment."""
        self.metrics.add_source(lambda: backend_readings(pools, self._clock()))
        self.metrics.add_source(lambda: queue_readings(dispatcher, names()))

    def render(self, accept: str) -> tuple[bytes, str]:
        """The page of metrics and its content type."""
        return render(self.metrics.registry, accept)

    def reopen_log(self) -> None:
        """Go on in a new file at the access log's path: the old one was moved away."""
        if self._writer is not None:
            self._writer.reopen()

    def close(self) -> None:
        """Write what is left. Blocks for a few seconds at most."""
        if self._tracing is not None:
            self._tracing.close()
        if self._writer is not None:
            self._writer.close()
