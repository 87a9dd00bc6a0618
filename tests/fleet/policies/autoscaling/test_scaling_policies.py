import math
from random import Random

import pytest

from argosy.errors import ConfigError
from argosy.fleet.policies.autoscaling.capacity import KnownCapacity, LearntCapacity
from argosy.fleet.policies.autoscaling.forecast import DAY_S, DailySchedule, HoltWinters, SeasonalNaive, highest_rate_per_s
from argosy.fleet.policies.autoscaling.predictive import HighestOf, PredictedRate, warm_pool_size
from argosy.fleet.policies.autoscaling.reactive import TargetLatency, TargetQueue, TargetRate, TargetUtilisation
from argosy.fleet.policies.autoscaling.signals import FleetSignals

HOUR_S = 3600.0
DAY = DailySchedule(((0.0, 500.0), (6 * HOUR_S, 1500.0), (9 * HOUR_S, 3000.0), (17 * HOUR_S, 2000.0), (20 * HOUR_S, 1000.0)))


class TestReactive:
    def test_a_spike_of_three_times_the_requests(self):
        """10 replicas at 70 % on 1000 QPS; 3000 arrive: 210 %, and 30 replicas bring it back to 70 %."""
        assert TargetUtilisation(0.7).wanted(FleetSignals(0.0, 10, utilisation=2.1)) == pytest.approx(30.0)

    def test_proportions(self):
        assert TargetLatency(0.5).wanted(FleetSignals(0.0, 8, p99_latency_s=0.75)) == pytest.approx(12.0)
        assert TargetLatency(0.5).wanted(FleetSignals(0.0, 8)) == 0.0
        queue = TargetQueue(target=5.0, running_per_replica=32.0)
        assert queue.wanted(FleetSignals(0.0, 3, num_waiting=40, num_running=96)) == pytest.approx(8.0)
        assert queue.wanted(FleetSignals(0.0, 3, num_waiting=0, num_running=96)) == pytest.approx(3.0)

    def test_a_backlog_wants_replicas_of_its_own(self):
        policy = TargetRate(KnownCapacity(100.0), target=0.8, drain_s=60.0)
        assert policy.wanted(FleetSignals(0.0, 1, arrivals_per_s=400.0)) == pytest.approx(5.0)
        assert policy.wanted(FleetSignals(0.0, 1, arrivals_per_s=400.0, num_waiting=24_000)) == pytest.approx(10.0)
        patient = TargetRate(KnownCapacity(100.0), drain_s=math.inf)
        assert patient.wanted(FleetSignals(0.0, 1, arrivals_per_s=400.0, num_waiting=24_000)) == pytest.approx(4.0)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: TargetUtilisation(0.0),
            lambda: TargetUtilisation(1.1),
            lambda: TargetLatency(0.0),
            lambda: TargetQueue(0.0, 1.0),
            lambda: TargetQueue(1.0, 0.0),
            lambda: TargetRate(KnownCapacity(1.0), target=0.0),
            lambda: TargetRate(KnownCapacity(1.0), drain_s=0.0),
            lambda: KnownCapacity(0.0),
            lambda: LearntCapacity(0.0),
            lambda: LearntCapacity(1.0, weight=0.0),
            lambda: PredictedRate(DAY, KnownCapacity(1.0), -1.0),
            lambda: PredictedRate(DAY, KnownCapacity(1.0), 1.0, target=2.0),
            lambda: HighestOf(()),
        ],
    )
    def test_impossible_settings_are_refused(self, make):
        with pytest.raises(ConfigError):
            make()


class TestLearntCapacity:
    def test_first_batches_of_a_cold_replica_are_left_out(self):
        capacity = LearntCapacity(10.0, warm_up_s=60.0, weight=0.5)
        for age_s in (5.0, 30.0, 59.0):
            assert not capacity.observe(age_s=age_s, busy_s=10.0, num_finished=3)
        assert capacity.requests_per_s == 10.0
        assert capacity.observe(age_s=61.0, busy_s=10.0, num_finished=120)
        assert capacity.requests_per_s == pytest.approx(11.0)

    def test_idle_time_and_tiny_samples_say_nothing(self):
        capacity = LearntCapacity(10.0, min_busy_s=1.0)
        assert not capacity.observe(age_s=1e3, busy_s=0.1, num_finished=5)
        assert not capacity.observe(age_s=1e3, busy_s=5.0, num_finished=0)
        assert capacity.requests_per_s == 10.0

    def test_it_converges(self):
        capacity, rng = LearntCapacity(1.0), Random(0)
        for _ in range(200):
            capacity.observe(age_s=1e3, busy_s=10.0, num_finished=round(rng.gauss(80.0, 4.0)))
        assert capacity.requests_per_s == pytest.approx(8.0, rel=0.05)


class TestPredictive:
    def test_the_daily_table(self):
        """100 QPS per replica, half an hour ahead: 5/15/30/20/10 replicas, growing at 05:30 and 08:30."""
        policy = PredictedRate(DAY, KnownCapacity(100.0), lead_s=1800.0)
        wanted = {minute: policy.wanted(FleetSignals(minute * 60.0, 1)) for minute in range(0, 1440, 10)}
        changes = [(minute, wanted[minute]) for minute in wanted if minute == 0 or wanted[minute] != wanted[minute - 10]]
        expected = [(0, 5.0), (5.5, 15.0), (8.5, 30.0), (17, 20.0), (20, 10.0)]
        assert changes == [(hour * 60, pytest.approx(replicas)) for hour, replicas in expected]

    def test_the_table_repeats_and_the_next_morning_is_seen_before_midnight(self):
        night = DailySchedule(((0.0, 900.0), (HOUR_S, 100.0)), midnight_s=7 * HOUR_S)
        assert [night.rate_per_s(hour * HOUR_S) for hour in (7, 7.9, 8, 30, 31)] == [900.0, 900.0, 100.0, 100.0, 900.0]
        policy = PredictedRate(night, KnownCapacity(100.0), lead_s=1800.0)
        assert policy.wanted(FleetSignals(30.4 * HOUR_S, 1)) == pytest.approx(1.0)
        assert policy.wanted(FleetSignals(30.6 * HOUR_S, 1)) == pytest.approx(9.0)

    def test_the_highest_of_predicted_and_reactive_and_a_buffer(self):
        policy = HighestOf((PredictedRate(DAY, KnownCapacity(100.0), 0.0), TargetUtilisation(0.5)), buffer=2.0)
        assert policy.wanted(FleetSignals(0.0, 4, utilisation=0.5)) == pytest.approx(7.0)
        assert policy.wanted(FleetSignals(0.0, 10, utilisation=0.5)) == pytest.approx(12.0)

    def test_every_policy_learns_although_another_wants_more(self):
        learning = SeasonalNaive(season_s=100.0, bucket_s=10.0)
        predicted = PredictedRate(learning, KnownCapacity(1.0), 10.0)
        policy = HighestOf((TargetUtilisation(0.5), predicted))
        for at_s in range(0, 101, 10):
            policy.wanted(FleetSignals(float(at_s), 100, utilisation=0.9, arrivals_per_s=7.0))
        assert learning.rate_per_s(110.0) == 7.0

    def test_warm_pool(self):
        """A peak of twice the usual, 1.5 in hand: three times the minimum."""
        assert warm_pool_size(2 * 700.0, 100.0, 1.5) == 3 * 7

    @pytest.mark.parametrize(
        "steps", [(), ((1.0, 5.0),), ((0.0, 1.0), (0.0, 2.0)), ((0.0, 1.0), (DAY_S, 2.0)), ((0.0, -1.0),)]
    )
    def test_schedules_that_are_not_a_day_are_refused(self, steps):
        with pytest.raises(ConfigError):
            DailySchedule(steps)


def daily(at_s: float) -> float:
    return 100.0 + 60.0 * math.sin(2 * math.pi * at_s / DAY_S)


class TestSeasonal:
    def test_the_same_time_of_the_season_before(self):
        forecast = SeasonalNaive(season_s=DAY_S, bucket_s=HOUR_S)
        assert forecast.rate_per_s(5 * HOUR_S) is None
        for minute in range(0, 1441, 10):
            forecast.observe(minute * 60.0, daily(minute * 60.0))
        later = DAY_S + 5 * HOUR_S
        expected = sum(daily(5 * HOUR_S + minute * 60.0) for minute in range(0, 60, 10)) / 6
        assert forecast.rate_per_s(later) == pytest.approx(expected)
        assert forecast.rate_per_s(later + 3 * DAY_S + 1800.0) == pytest.approx(expected)

    def test_the_mean_of_the_last_seasons_only(self):
        forecast = SeasonalNaive(season_s=100.0, bucket_s=50.0, num_seasons=2)
        for season, rate in enumerate((1000.0, 10.0, 30.0)):
            for at_s in (0.0, 50.0):
                forecast.observe(season * 100.0 + at_s, rate)
        forecast.observe(300.0, 0.0)
        assert forecast.rate_per_s(320.0) == pytest.approx(20.0)

    def test_weekends_are_not_weekdays(self):
        forecast = SeasonalNaive()
        for quarter in range(8 * 96):
            at_s = quarter * 900.0
            forecast.observe(at_s, 10.0 if at_s // DAY_S % 7 >= 5 else 100.0)
        assert [forecast.rate_per_s((7 + day) * DAY_S + 1e4) for day in (1, 4, 5, 6)] == [100.0, 100.0, 10.0, 10.0]

    @pytest.mark.parametrize("make", [SeasonalNaive, HoltWinters])
    def test_a_season_is_whole_buckets(self, make):
        for bucket_s in (0.0, 7.0 * HOUR_S):
            with pytest.raises(ConfigError, match="whole number of buckets"):
                make(season_s=DAY_S, bucket_s=bucket_s)

    def test_holt_winters_follows_season_and_growth(self):
        """A day's swing on a rising base, with noise: errors of the next hour are small; yesterday's value lags."""
        forecasts = (HoltWinters(bucket_s=HOUR_S, beta=0.05), SeasonalNaive(season_s=DAY_S, bucket_s=HOUR_S))
        errors, rng = ([], []), Random(3)
        for hour in range(24 * 14):
            truth = daily(hour * HOUR_S) + 0.5 * hour
            observed = truth * rng.gauss(1.0, 0.02)
            for forecast, seen in zip(forecasts, errors, strict=True):
                if hour >= 24 * 7:
                    seen.append(abs(forecast.rate_per_s(hour * HOUR_S) - truth) / truth)
                forecast.observe(hour * HOUR_S, observed)
        smooth_error, naive_error = (sum(seen) / len(seen) for seen in errors)
        assert smooth_error < 0.03
        assert smooth_error < 0.8 * naive_error

    def test_holt_winters_knows_nothing_before_a_season_is_over(self):
        forecast = HoltWinters(season_s=40.0, bucket_s=10.0)
        for at_s in (0.0, 10.0, 20.0, 30.0):
            forecast.observe(at_s, at_s)
            assert forecast.rate_per_s(at_s + 10.0) is None
        forecast.observe(40.0, 0.0)
        assert [forecast.rate_per_s(at_s) for at_s in (40.0, 50.0, 60.0, 70.0)] == pytest.approx([0.0, 10.0, 20.0, 30.0])

    def test_a_forecast_far_ahead_goes_on_growing(self):
        forecast = HoltWinters(season_s=20.0, bucket_s=10.0, alpha=0.5, beta=0.3, gamma=0.1)
        for bucket in range(300):
            forecast.observe(bucket * 10.0, 100.0 + bucket)
        assert forecast.rate_per_s(3990.0) == pytest.approx(100.0 + 399, rel=0.01)

    def test_a_gap_leaves_the_season_as_it_was(self):
        forecast = HoltWinters(season_s=40.0, bucket_s=10.0, beta=0.0)
        for at_s in range(0, 90, 10):
            forecast.observe(float(at_s), float(at_s % 40))
        before = [forecast.rate_per_s(float(at_s)) for at_s in (160, 170, 180, 190)]
        forecast.observe(165.0, 0.0)
        assert [forecast.rate_per_s(float(at_s)) for at_s in (200, 210, 220, 230)] == pytest.approx(before)

    def test_rates_are_never_negative(self):
        forecast = HoltWinters(season_s=20.0, bucket_s=10.0, alpha=0.9)
        for bucket in range(12):
            forecast.observe(bucket * 10.0, 100.0 if bucket % 2 and bucket < 3 else 0.0)
        assert all(forecast.rate_per_s(at_s) >= 0.0 for at_s in (120.0, 130.0))


def test_the_highest_rate_of_a_span_sees_every_step_and_both_ends():
    peaks = SeasonalNaive(season_s=100.0, bucket_s=10.0)
    assert highest_rate_per_s(peaks, 0.0, 50.0) is None
    for bucket in range(11):
        peaks.observe(bucket * 10.0, 5.0 if bucket != 3 else 50.0)
    assert highest_rate_per_s(peaks, 100.0, 125.0) == 5.0
    assert highest_rate_per_s(peaks, 100.0, 130.0) == 50.0
    assert highest_rate_per_s(peaks, 139.0, 200.0) == 50.0
    assert highest_rate_per_s(peaks, 140.0, 200.0) == 5.0
