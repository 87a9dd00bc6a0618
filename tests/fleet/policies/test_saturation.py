import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.replica_state import LoadReport, ReplicaInfo, ReplicaState
from argosy.fleet.policies.saturation import Room, SaturationSettings, pool_room, replica_saturation

SETTINGS = SaturationSettings(max_in_flight=10, max_waiting=4, kv_threshold=0.8)


def replica(report: LoadReport | None = None, *, requests: int = 0, tokens: int = 0, **info) -> ReplicaState:
    state = ReplicaState(ReplicaInfo("r", **info))
    state.take_report(report)
    state.booked.requests, state.booked.tokens = requests, tokens
    return state


@pytest.mark.parametrize(
    ("state", "saturation"),
    [
        (replica(), 0.0),
        (replica(requests=5), 0.5),
        (replica(requests=5, max_in_flight=20), 0.25),
        (replica(LoadReport(0.0, num_running=3, num_waiting=2)), 0.5),
        (replica(LoadReport(0.0, num_waiting=4)), 1.0),
        (replica(LoadReport(0.0, kv_used_fraction=0.4)), 0.5),
        (replica(LoadReport(0.0, num_waiting=1, kv_used_fraction=0.6)), 0.75),
        (replica(tokens=400, kv_capacity_tokens=1000), 0.5),
    ],
)
def test_a_replica_is_as_full_as_the_fuller_of_queue_and_kv(state, saturation):
    assert replica_saturation(state, SETTINGS) == pytest.approx(saturation)


def test_the_room_of_a_pool_is_that_of_its_replicas_which_take_requests():
    down = replica()
    down.healthy = False
    room = pool_room([replica(requests=4), replica(requests=8), down], SETTINGS)
    assert room == Room(2, 20, 8, math.inf, math.inf, pytest.approx(0.6))


def test_a_full_replica_lends_no_room_however_much_of_it_is_left_elsewhere():
    full_of_kv = replica(LoadReport(0.0, num_running=2, kv_used_fraction=0.9), kv_capacity_tokens=1000)
    half = replica(LoadReport(0.0, num_running=5, kv_used_fraction=0.4), kv_capacity_tokens=1000)
    room = pool_room([full_of_kv, half], SETTINGS)
    assert (room.total_requests, room.free_requests) == (20, 5)
    assert (room.total_tokens, room.free_tokens) == pytest.approx((1600, 400))


def test_an_engine_that_lets_requests_wait_takes_as_many_as_may_wait():
    assert pool_room([replica(LoadReport(0.0, num_running=4, num_waiting=1))], SETTINGS).free_requests == 3
    since = replica(LoadReport(0.0, num_running=4, num_waiting=1))
    since.booked.requests = 2
    assert pool_room([since], SETTINGS).free_requests == 1


def test_what_was_let_go_and_is_not_booked_yet_counts():
    room = pool_room([replica(kv_capacity_tokens=1000)], SETTINGS, undispatched_requests=3, undispatched_tokens=600)
    assert (room.free_requests, room.free_tokens) == (7, 200)
    assert room.saturation == pytest.approx(0.75)


def test_without_limits_there_is_no_end_of_room():
    room = pool_room([replica(requests=1000)], SaturationSettings(), undispatched_requests=1000)
    assert room.fits(10**9, leaving=0.5)
    assert room.saturation == 0.0


def test_an_empty_pool_has_no_room():
    room = pool_room([], SETTINGS)
    assert (room.num_ready, room.saturation) == (0, 0.0)
    assert not room.fits(0)


@pytest.mark.parametrize(
    ("free", "total", "leaving", "fits"),
    [(1, 10, 0.0, True), (1, 10, 0.1, False), (2, 10, 0.1, True), (0, 10, 0.0, False), (1, 9, 0.1, True), (1, 1, 0.1, True)],
)
def test_headroom_is_in_whole_requests_rounded_down(free, total, leaving, fits):
    assert Room(1, total, free, math.inf, math.inf).fits(5, leaving=leaving) is fits


@pytest.mark.parametrize(
    ("free", "tokens", "leaving", "fits"),
    [(100, 500, 0.1, True), (99, 99, 0.0, True), (99, 100, 0.0, False), (60, 50, 0.1, True), (60, 51, 0.1, False)],
)
def test_tokens_must_fit_unless_nothing_else_is_there(free, tokens, leaving, fits):
    assert Room(1, math.inf, math.inf, 100, free).fits(tokens, leaving=leaving) is fits


@given(num=st.integers(1, 20), tokens=st.integers(0, 500))
def test_what_is_taken_and_given_back_leaves_the_room_as_it_was(num, tokens):
    room = Room(2, 40, 30, 1000, 800, 0.6)
    taken = room
    for _ in range(num):
        taken = taken.less(tokens)
    back = taken.more(num, num * tokens)
    assert (back.free_requests, back.free_tokens, back.saturation) == pytest.approx((30, 800, 0.6))
    assert taken.saturation >= room.saturation


@pytest.mark.parametrize("fields", [{"max_in_flight": 0}, {"max_waiting": 0}, {"kv_threshold": 0.0}, {"kv_threshold": 1.1}])
def test_impossible_settings_are_refused(fields):
    with pytest.raises(ConfigError):
        SaturationSettings(**fields)


def test_a_replica_takes_at_least_one_request():
    with pytest.raises(ConfigError, match="max_in_flight"):
        ReplicaInfo("r", max_in_flight=0)
