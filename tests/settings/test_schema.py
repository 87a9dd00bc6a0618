from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from argosy.errors import ConfigError
from argosy.settings.schema import from_function, from_mapping, nearest


@dataclass(frozen=True, slots=True)
class Circle:
    kind: ClassVar[str] = "circle"
    radius: float

    @classmethod
    def from_number(cls, value: float) -> "Circle":
        return cls(value)

    def __post_init__(self) -> None:
        if self.radius < 0:
            raise ConfigError(f"radius must not be negative, got {self.radius:g}")


@dataclass(frozen=True, slots=True)
class Box:
    kind: ClassVar[str] = "box"
    sides: tuple[float, ...]
    computed: int = field(init=False, default=0)


@dataclass(frozen=True, slots=True)
class Inner:
    count: int


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    rate: float = 1.0
    quiet: bool = False
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    shape: Circle | Box | None = None
    pairs: tuple[tuple[float, float], ...] = ()


def test_everything_a_field_may_be():
    settings = {
        "name": "x",
        "rate": 3,
        "quiet": True,
        "inner": {"count": 2},
        "many": [{"count": 1}, {"count": 5}],
        "shape": {"kind": "box", "sides": [1, 2.5]},
        "pairs": [[0, 1], [2, 3.5]],
    }
    made = from_mapping(Outer, settings, "top")
    assert made == Outer("x", 3.0, True, Inner(2), (Inner(1), Inner(5)), Box((1.0, 2.5)), ((0.0, 1.0), (2.0, 3.5)))
    assert isinstance(made.rate, float)


def test_defaults_and_null():
    assert from_mapping(Outer, {"name": "x", "inner": None, "shape": None}, "top") == Outer("x")


def test_a_bare_number_stands_for_a_member_that_takes_one():
    assert from_mapping(Outer, {"name": "x", "shape": 4}, "top").shape == Circle(4.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], "top must be a mapping, got []"),
        ({}, "top needs name"),
        ({"name": "x", "quite": True}, "top has an unknown key 'quite': did you mean quiet?"),
        ({"name": "x", "zzz": 1}, "top has an unknown key 'zzz': known are name, rate, quiet, inner, many, shape, pairs"),
        ({"name": "x", True: 1}, "top has an unknown key True: known are name, rate, quiet, inner, many, shape, pairs"),
        ({"name": 3}, "top.name must be a text, got 3"),
        ({"name": "x", "rate": "1"}, "top.rate must be a finite number, got '1'"),
        ({"name": "x", "rate": True}, "top.rate must be a finite number, got True"),
        ({"name": "x", "rate": float("nan")}, "top.rate must be a finite number, got nan"),
        ({"name": "x", "rate": float("inf")}, "top.rate must be a finite number, got inf"),
        ({"name": "x", "rate": None}, "top.rate must be a finite number, got None"),
        (
            {"name": "x", "rate": 10**400},
            f"top.rate must be a finite number, got 1{'0' * 56}...",
        ),
        ({"name": "x", "quiet": 1}, "top.quiet must be true or false, got 1"),
        ({"name": "x", "inner": {"count": 1.0}}, "top.inner.count must be a whole number, got 1.0"),
        ({"name": "x", "inner": {"count": True}}, "top.inner.count must be a whole number, got True"),
        ({"name": "x", "inner": {}}, "top.inner needs count"),
        ({"name": "x", "inner": 3}, "top.inner must be a mapping, got 3"),
        ({"name": "x", "many": {"count": 1}}, "top.many must be a list, got {'count': 1}"),
        ({"name": "x", "many": [{"count": 1}, {"cuont": 1}]}, "top.many[1] has an unknown key 'cuont': did you mean count?"),
        ({"name": "x", "shape": {"radius": 1}}, "top.shape needs a kind: one of circle, box"),
        ({"name": "x", "shape": {"kind": "bax"}}, "top.shape.kind 'bax' is unknown: did you mean box?"),
        ({"name": "x", "shape": {"kind": ["box"]}}, "top.shape.kind ['box'] is unknown: did you mean box?"),
        (
            {"name": "x", "shape": {"kind": "box", "sides": [1], "radius": 2}},
            "top.shape has an unknown key 'radius': known are sides",
        ),
        (
            {"name": "x", "shape": {"kind": "box", "sides": [1], "computed": 2}},
            "top.shape has an unknown key 'computed': known are sides",
        ),
        ({"name": "x", "shape": {"kind": "circle", "radius": -1}}, "top.shape: radius must not be negative, got -1"),
        ({"name": "x", "shape": -1}, "top.shape: radius must not be negative, got -1"),
        ({"name": "x", "shape": "big"}, "top.shape must be a finite number, got 'big'"),
        ({"name": "x", "pairs": [[1, 2, 3]]}, "top.pairs[0] must be a list of 2, got [1, 2, 3]"),
        ({"name": "x", "pairs": [[1, "2"]]}, "top.pairs[0][1] must be a finite number, got '2'"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(settings: object, message: str):
    with pytest.raises(ConfigError) as caught:
        from_mapping(Outer, settings, "top")
    assert str(caught.value) == message


def test_nearest_names_one_or_all():
    assert nearest("poison", ["poisson", "gamma"]) == "did you mean poisson?"
    assert nearest("x", ["poisson", "gamma"]) == "known are poisson, gamma"


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({}, ""),
        ({"name": "x", "quite": True}, "quite"),
        ({"name": "x", "many": [{"count": 1}, {"count": "2"}]}, "many[1].count"),
        ({"name": "x", "shape": {"kind": "bax"}}, "shape.kind"),
        ({"name": "x", "shape": {"kind": "circle", "radius": -1}}, "shape.radius"),
        ({"name": "x", "pairs": [[1, "2"]]}, "pairs[0][1]"),
    ],
)
def test_errors_of_a_whole_file_carry_the_path(settings: object, param: str):
    with pytest.raises(ConfigError) as caught:
        from_mapping(Outer, settings, "")
    assert caught.value.param == param
    assert not caught.value.message.startswith((":", "."))


def test_a_class_may_say_which_of_its_fields_is_wrong():
    @dataclass(frozen=True)
    class Picky:
        first: int
        second: int

        def __post_init__(self) -> None:
            raise ConfigError("they do not go together", param="second")

    with pytest.raises(ConfigError) as caught:
        from_mapping(Picky, {"first": 1, "second": 2}, "top")
    assert (caught.value.message, caught.value.param) == ("top: they do not go together", "top.second")


def make(name: str, *, sizes: Mapping[str, Mapping[str, float]], limit: float | None = None) -> tuple:
    return name, sizes, limit


def test_a_function_from_its_keyword_arguments():
    made = from_function(make, {"name": "x", "sizes": {"a": {"b": 1}}}, "top")
    assert made == ("x", {"a": {"b": 1.0}}, None)
    with pytest.raises(ConfigError, match=r"top.sizes.a.b must be a finite number, got 'z'"):
        from_function(make, {"name": "x", "sizes": {"a": {"b": "z"}}}, "top")
    with pytest.raises(ConfigError, match=r"top.sizes.a must be a mapping, got 3"):
        from_function(make, {"name": "x", "sizes": {"a": 3}}, "top")
    with pytest.raises(ConfigError, match=r"top has an unknown key 'lmit': did you mean limit?"):
        from_function(make, {"name": "x", "sizes": {}, "lmit": 3}, "top")
    with pytest.raises(ConfigError, match="top needs sizes"):
        from_function(make, {"name": "x"}, "top")


@dataclass(frozen=True, slots=True)
class Labelled:
    label: str
    kind: str = "plain"


def test_a_field_called_kind_is_a_setting_and_no_tag():
    assert from_mapping(Labelled, {"label": "a", "kind": "odd"}, "x") == Labelled("a", "odd")
    assert from_mapping(Labelled, {"label": "a"}, "x") == Labelled("a")
