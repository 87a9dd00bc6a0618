import pytest

from argosy.cost.operations_defaults import (
    DEEP,
    LIVENESS,
    READINESS,
    AlertThresholds,
    BreakerThresholds,
    HealthCheck,
)
from argosy.errors import ConfigError


def test_alerts_at_ten_percent_over_for_five_minutes():
    alerts = AlertThresholds()
    assert alerts.latency_alerts(1.11, 1.0, 300)
    assert not alerts.latency_alerts(1.10, 1.0, 300)
    assert not alerts.latency_alerts(2.00, 1.0, 299)


def test_alerts_at_ninety_percent_of_a_quota_and_twice_the_fair_share():
    alerts = AlertThresholds()
    assert alerts.quota_alerts(90, 100)
    assert not alerts.quota_alerts(89.9, 100)
    assert alerts.fair_share_alerts(2.01, 1, 300)
    assert not alerts.fair_share_alerts(2.0, 1, 300)
    assert not alerts.fair_share_alerts(9.0, 1, 299)


def test_breaker_opens_at_half_errors_or_twice_the_latency():
    breaker = BreakerThresholds()
    assert breaker.opens(error_share=0.5, latency_s=1, baseline_s=1)
    assert breaker.opens(error_share=0, latency_s=2, baseline_s=1)
    assert not breaker.opens(error_share=0.49, latency_s=1.99, baseline_s=1)
    assert (breaker.open_s, breaker.half_open_probes) == (30, 5)


def test_health_checks_and_how_long_a_hang_goes_unseen():
    settings = [(check.interval_s, check.timeout_s, check.failures) for check in (LIVENESS, READINESS, DEEP)]
    assert settings == [(10, 5, 3), (5, 3, 2), (30, 10, 1)]
    assert [check.detection_s for check in (LIVENESS, READINESS, DEEP)] == [35, 13, 40]


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: AlertThresholds(latency_over_target=0), "latency_over_target"),
        (lambda: AlertThresholds(latency_hold_s=-1), "latency_hold_s"),
        (lambda: AlertThresholds(quota_used=1.5), "quota_used"),
        (lambda: AlertThresholds().latency_alerts(1, 0, 300), "target_s"),
        (lambda: AlertThresholds().quota_alerts(1, 0), "limit"),
        (lambda: BreakerThresholds(error_share=float("nan")), "error_share"),
        (lambda: BreakerThresholds(half_open_probes=0), "half_open_probes"),
        (lambda: BreakerThresholds().opens(error_share=2, latency_s=1, baseline_s=1), "error_share"),
        (lambda: HealthCheck(0, 1, 1), "interval_s"),
        (lambda: HealthCheck(1, 1, 0), "failures"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
