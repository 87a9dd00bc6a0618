"""Streams depend on seed and name, and on nothing else."""

from __future__ import annotations

from argosy.sim.random_streams import RandomStreams


def draws(streams: RandomStreams, name: str) -> tuple[list[float], list[float]]:
    return [streams.python(name).random() for _ in range(5)], streams.numpy(name).random(5).tolist()


def test_one_more_draw_elsewhere_changes_nothing():
    alone, beside = RandomStreams(1), RandomStreams(1)
    for name in ("b", "a2", "c"):
        draws(beside, name)
    assert draws(alone, "a") == draws(beside, "a")


def test_seed_name_and_kind_tell_streams_apart():
    seen = {tuple(values) for seed in (1, 2, 11) for name in ("a", "1a", "") for values in draws(RandomStreams(seed), name)}
    assert len(seen) == 18


def test_asking_again_goes_on_with_the_same_stream():
    once, twice = RandomStreams(3), RandomStreams(3)
    assert [once.python("x").random(), once.python("x").random()] == [twice.python("x").random() for _ in range(2)]


def test_streams_are_the_same_on_every_machine():
    assert RandomStreams(0).python("arrivals").getrandbits(32) == 83427741
    assert int(RandomStreams(0).numpy("arrivals").integers(1 << 32)) == 3262145934
