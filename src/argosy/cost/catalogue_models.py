"""Reading the catalogue file of models: published configurations, and published totals to check the shapes against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy.cost.catalogue_devices import parse_catalogue
from argosy.cost.catalogue_names import Directory
from argosy.cost.catalogue_sources import check_keys, names_of
from argosy.cost.model_spec import ModelSpec
from argosy.cost.quantity import Grade
from argosy.cost.spec_from_hf import spec_from_hf


@dataclass(frozen=True, slots=True)
class PublishedTotals:
    """What the publisher or a table of models prints. Texts keep the digits they were printed with.

    Attributes:
        parameters, active: in 1e9; `active` counts the input embedding.
        parameters_about, active_about: round figures in 1e9, such as those in a model's name.
        kv_kib_per_token: KiB in bf16 while no window is full, an indexer's keys aside.
    """

    parameters: str | None = None
    active: str | None = None
    parameters_about: float | None = None
    active_about: float | None = None
    kv_kib_per_token: str | None = None


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A model with the provenance of its shape."""

    spec: ModelSpec
    aliases: tuple[str, ...]
    published: PublishedTotals
    source: str
    grade: Grade
    as_of: str


def load_models(text: str) -> Directory[CatalogueModel]:
    """The models of a file.

    Raises:
        ConfigError: names the entry and what is wrong with it.
        UnsupportedModel: a configuration of a kind that is not known.
    """
    sources, tables = parse_catalogue(text, ("model",))

    def entry_of(entry: Mapping[str, Any]) -> CatalogueModel:
        where = f"model {entry.get('name')!r}"
        check_keys(entry, where, required=("name", "aliases", "source", "config"), optional=("published",))
        published = entry.get("published", {})
        check_keys(published, f"{where} published", optional=tuple(PublishedTotals.__dataclass_fields__))
        source, grade, as_of = sources.get(entry["source"], where)
        spec = spec_from_hf(entry["config"], entry["name"])
        return CatalogueModel(spec, names_of(entry, where)[1], PublishedTotals(**published), source, grade, as_of)

    entries = map(entry_of, tables["model"])
    return Directory("model", ((entry.spec.name, entry.aliases, entry) for entry in entries))
