"""Alerts of a running gateway: feeds the rules of `policies.alerts` and tells what they find."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.gateway.metrics import Reading
from argosy.fleet.policies.alerts import AlertChange, AlertConfig, FairShareRule, LatencyRule, QuotaRule
from argosy.observe.logs import log_event

_LOGGER = logging.getLogger("argosy.gateway.alerts")
QuotaUse = Mapping[tuple[str, str, str], float]
"""Part of a limit in use, by (kind of scope, id, dimension)."""


class AlertWatch:
    """An `ExchangeObserver` that watches latency and shares, and a loop that judges them every `interval_s`."""

    def __init__(
        self,
        config: AlertConfig,
        clock_s: Callable[[], float],
        quota_use: Callable[[], QuotaUse] = dict,
        *,
        interval_s: float = 5.0,
    ) -> None:
        """Make the rules; nothing is judged before `run`.

        Args:
            clock_s: the pipeline's clock.
            quota_use: where every limit that is in use stands.
        """
        self._config = config
        self._clock_s = clock_s
        self._quota_use = quota_use
        self._interval_s = interval_s
        self._latency = LatencyRule(config)
        self._shares = FairShareRule(config)
        self._quotas = QuotaRule(config)
        self._firing: dict[tuple[str, str], AlertChange] = {}

    def started(self, exchange: Exchange) -> None:
        """Nothing."""

    def first_byte(self, exchange: Exchange) -> None:
        """Nothing."""

    def finished(self, exchange: Exchange) -> None:
        """Take in a request that was answered; one that was refused has no latency and took no share."""
        if not exchange.backend_id:
            return
        now_s = exchange.finished_s
        if exchange.status < 400:
            self._latency.observe(exchange.pool, now_s - exchange.received_s, now_s)
        if exchange.principal is not None:
            tokens = exchange.usage.input_tokens + exchange.usage.output_tokens
            self._shares.observe(exchange.principal.tenant, tokens, now_s, weight=exchange.principal.weight)

    async def run(self) -> None:
        """Judge until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            self.judge(self._clock_s())

    def judge(self, now_s: float) -> list[AlertChange]:
        """Log what began or ended, one line each, and return it."""
        used = {"/".join(name): ratio for name, ratio in self._quota_use().items()}
        changes = [*self._latency.changes(now_s), *self._shares.changes(now_s), *self._quotas.changes(used, now_s)]
        for change in changes:
            key = (change.alert, change.subject)
            if change.is_firing:
                self._firing[key] = change
            else:
                self._firing.pop(key, None)
            level, message = (logging.WARNING, "alert") if change.is_firing else (logging.INFO, "alert over")
            values = {"value": change.value, "threshold": change.threshold}
            log_event(_LOGGER, level, message, alert=change.alert, subject=change.subject, **values)
        return changes

    def readings(self) -> Iterable[Reading]:
        """For `GatewayMetrics.add_source`."""
        now_s = self._clock_s()
        for model, p99_s in self._latency.p99_s(now_s).items():
            yield Reading("argosy_gateway_latency_p99_seconds", (model,), p99_s)
        if self._config.latency_target_s is not None:
            yield Reading("argosy_gateway_latency_target_seconds", (), self._config.latency_target_s)
        for tenant, ratio in self._shares.ratios(now_s).items():
            yield Reading("argosy_gateway_tenant_share_ratio", (tenant,), ratio)
        for name, ratio in self._quota_use().items():
            yield Reading("argosy_gateway_quota_used_ratio", name, ratio)
        for alert, subject in self._firing:
            yield Reading("argosy_gateway_alert_firing", (alert, subject), 1.0)
