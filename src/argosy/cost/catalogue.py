"""The catalogue that comes with the package: devices, nodes, links, tiers and models, each by name.

Files are read once and what they hold is immutable. A name is matched whole, letter case and separators aside; one that is
not known is an error that names near ones, and "H100" alone is not known, since three products are called that.
"""

from __future__ import annotations

import functools
from importlib import resources

from argosy.cost.catalogue_devices import load_devices, load_links
from argosy.cost.catalogue_models import CatalogueModel, load_models
from argosy.cost.catalogue_names import Directory
from argosy.cost.device import Device, Link, Node, Tier
from argosy.cost.machine_calibration import is_this_machine, require_machine
from argosy.cost.model_spec import ModelSpec


def catalogue_text(filename: str) -> str:
    """The text of one of the package's catalogue files."""
    return (resources.files("argosy.cost") / "data" / filename).read_text(encoding="utf-8")


@functools.cache
def _links() -> tuple[Directory[Link], Directory[Tier]]:
    return load_links(catalogue_text("links.toml"))


@functools.cache
def _devices() -> tuple[Directory[Device], Directory[Node]]:
    return load_devices(catalogue_text("devices.toml"), _links()[0])


@functools.cache
def _models() -> Directory[CatalogueModel]:
    return load_models(catalogue_text("models.toml"))


def all_devices() -> tuple[Device, ...]:
    """Every device of the catalogue."""
    return tuple(_devices()[0])


def all_nodes() -> tuple[Node, ...]:
    """Every node of the catalogue."""
    return tuple(_devices()[1])


def all_links() -> tuple[Link, ...]:
    """Every link of the catalogue."""
    return tuple(_links()[0])


def all_tiers() -> tuple[Tier, ...]:
    """Every storage tier of the catalogue."""
    return tuple(_links()[1])


def all_models() -> tuple[CatalogueModel, ...]:
    """Every model of the catalogue, with its provenance."""
    return tuple(_models())


def find_device(name: str) -> Device:
    """The device of that name or alias; `this-machine` is the one that was calibrated here.

    Raises:
        ConfigError: unknown; names near ones. Or this machine was not calibrated.
    """
    if is_this_machine(name):
        return require_machine().device
    return _devices()[0].find(name)


def find_node(name: str) -> Node:
    """The node of that name or alias.

    Raises:
        ConfigError: unknown; names near ones.
    """
    return _devices()[1].find(name)


def find_link(name: str) -> Link:
    """The link of that name or alias.

    Raises:
        ConfigError: unknown; names near ones.
    """
    return _links()[0].find(name)


def find_tier(name: str) -> Tier:
    """The storage tier of that name or alias.

    Raises:
        ConfigError: unknown; names near ones.
    """
    return _links()[1].find(name)


def find_model(name: str) -> ModelSpec:
    """The shape of the model of that name or alias.

    Raises:
        ConfigError: unknown; names near ones.
    """
    return find_catalogue_model(name).spec


def find_catalogue_model(name: str) -> CatalogueModel:
    """The model of that name or alias, with its provenance and published totals.

    Raises:
        ConfigError: unknown; names near ones.
    """
    return _models().find(name)
