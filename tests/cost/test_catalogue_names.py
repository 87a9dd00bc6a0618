"""Finding things by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.catalogue_names import Directory, fold
from argosy.errors import ConfigError


def directory() -> Directory[int]:
    return Directory("thing", [("Alpha 1", ("first",), 1), ("Alpha 2", (), 2), ("Beta", ("B",), 3)])


def test_titles_and_aliases_lead_to_the_same_entry() -> None:
    things = directory()
    assert (things.find("alpha-1"), things.find("FIRST"), things.find("b"), len(things), list(things)) == (
        1,
        1,
        3,
        3,
        [1, 2, 3],
    )


@pytest.mark.parametrize("name", ["alpha", "alpha 11", "bet", "irst", ""])
def test_part_of_a_name_is_not_a_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no thing is called '{name}'"):
        directory().find(name)


def test_near_names_are_offered_once_each() -> None:
    assert directory().near("alpha") == ["Alpha 1", "Alpha 2"]
    assert directory().near("zzz") == []
    assert directory().near("") == []


def test_one_name_for_two_entries_is_refused() -> None:
    with pytest.raises(ConfigError, match="thing name 'ALPHA-1' belongs to both Alpha 1 and Gamma"):
        Directory("thing", [("Alpha 1", (), 1), ("Gamma", ("ALPHA-1",), 2)])


def test_an_entry_may_repeat_its_own_name() -> None:
    assert Directory("thing", [("Alpha 1", ("alpha-1",), 1)]).find("alpha_1") == 1


@given(st.text(max_size=30))
def test_folding_is_idempotent_and_blind_to_case(text: str) -> None:
    assert fold(fold(text)) == fold(text)
    assert fold(text) == fold(text.replace("-", "_"))
