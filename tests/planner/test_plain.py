import dataclasses
import math

import pytest

from argosy.cost.quantity import Grade
from argosy.planner.plain import Plain, plain


@dataclasses.dataclass(frozen=True, slots=True)
class Inner(Plain):
    grade: Grade
    values: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Outer(Plain):
    inner: Inner
    by_name: dict[str, Inner]
    nothing: None = None


def test_answers_become_dicts_lists_and_strings():
    inner = Inner(Grade.MEASURED, (1.0, math.inf))
    expected = {"grade": "measured", "values": [1.0, None]}
    assert Outer(inner, {"a": inner}).to_json() == {"inner": expected, "by_name": {"a": expected}, "nothing": None}


def test_other_things_are_refused():
    with pytest.raises(TypeError, match="object"):
        plain(object())
