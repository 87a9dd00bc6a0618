"""Reading catalogue files of links, tiers, devices and nodes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from argosy.cost.catalogue_checks import RateCheck, check_peaks, check_plausible
from argosy.cost.catalogue_names import Directory
from argosy.cost.catalogue_sources import Sources, check_keys, count_field, names_of
from argosy.cost.device import Device, Link, Node, Precision, Tier
from argosy.cost.quantity import Dimension, Quantity
from argosy.errors import ConfigError

_SPARSITY = {"2:4": True, "none": False}


def parse_catalogue(text: str, tables: tuple[str, ...]) -> tuple[Sources, Mapping[str, list[dict[str, Any]]]]:
    """The sources of a file and its arrays of tables.

    Raises:
        ConfigError: not TOML, or a table that is not among `tables`.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"catalogue file is not TOML: {error}") from None
    check_keys(content, "catalogue file", required=("sources",), optional=tables)
    return Sources(content["sources"]), {table: content.get(table, []) for table in tables}


def load_links(text: str) -> tuple[Directory[Link], Directory[Tier]]:
    """The links and tiers of a file.

    Raises:
        ConfigError: names the entry and what is wrong with it.
    """
    sources, tables = parse_catalogue(text, ("link", "tier"))
    links, tiers = [], []
    for entry in tables["link"]:
        bandwidth, latency, _ = _link_numbers(sources, entry, "link")
        name, aliases = names_of(entry, "link")
        links.append((name, aliases, Link(name, bandwidth, latency)))
    for entry in tables["tier"]:
        bandwidth, latency, capacity = _link_numbers(sources, entry, "tier")
        name, aliases = names_of(entry, "tier")
        tiers.append((name, aliases, Tier(name, bandwidth, latency, capacity)))
    return Directory("link", links), Directory("tier", tiers)


def _link_numbers(sources: Sources, entry: Mapping[str, Any], kind: str) -> tuple[Quantity, Quantity, Quantity | None]:
    where = f"{kind} {entry.get('name')!r}"
    optional = ("source", "capacity") if kind == "tier" else ("source",)
    check_keys(entry, where, required=("name", "aliases", "bandwidth", "latency"), optional=optional)
    source = entry.get("source", "")
    bandwidth = sources.quantity(entry["bandwidth"], Dimension.BYTES_PER_S, source, f"{where} bandwidth")
    latency = sources.quantity(entry["latency"], Dimension.SECONDS, source, f"{where} latency")
    if bandwidth.value <= 0:
        raise ConfigError(f"{where}: bandwidth must be above zero")
    capacity = entry.get("capacity")
    if capacity is None:
        return bandwidth, latency, None
    return bandwidth, latency, sources.quantity(capacity, Dimension.BYTES, source, f"{where} capacity")


def load_devices(text: str, links: Directory[Link]) -> tuple[Directory[Device], Directory[Node]]:
    """The devices and nodes of a file, checked against each other and against physics.

    Raises:
        ConfigError: names the entry and what is wrong with it.
    """
    sources, tables = parse_catalogue(text, ("device", "node"))
    devices = Directory("device", ((d.name, d.aliases, d) for d in (_device(sources, e, links) for e in tables["device"])))
    nodes = Directory("node", ((n.name, n.aliases, n) for n in (_node(sources, e, devices) for e in tables["node"])))
    return devices, nodes


def _device(sources: Sources, entry: Mapping[str, Any], links: Directory[Link]) -> Device:
    where = f"device {entry.get('name')!r}"
    check_keys(
        entry,
        where,
        required=("name", "aliases", "kind", "source", "memory", "memory_bandwidth", "devices_per_node", "sparsity", "peak"),
        optional=("scale_up", "scale_out", "host", "power", "notes", "sparse_peak", "rate_check", "half_rate_accumulate"),
    )
    source = entry["source"]
    if entry["sparsity"] not in _SPARSITY:
        raise ConfigError(f"{where}: sparsity must be '2:4' or 'none', got {entry['sparsity']!r}")

    def link(key: str) -> Link | None:
        return links.find(entry[key]) if key in entry else None

    name, aliases = names_of(entry, where)
    device = Device(
        name=name,
        aliases=aliases,
        kind=entry["kind"],
        peak=_peaks(sources, entry["peak"], Dimension.FLOP_PER_S, source, f"{where} peak"),
        memory=sources.quantity(entry["memory"], Dimension.BYTES, source, f"{where} memory"),
        memory_bandwidth=sources.quantity(
            entry["memory_bandwidth"], Dimension.BYTES_PER_S, source, f"{where} memory_bandwidth"
        ),
        scale_up=link("scale_up"),
        scale_out=link("scale_out"),
        host=link("host"),
        power=sources.quantity(entry["power"], Dimension.WATTS, source, f"{where} power") if "power" in entry else None,
        devices_per_node=count_field(entry, "devices_per_node", where),
        notes=entry.get("notes", ""),
    )
    check_peaks(
        device,
        _peaks(sources, entry.get("sparse_peak", {}), Dimension.SPARSE_FLOP_PER_S, source, f"{where} sparse_peak"),
        _rate_check(sources, entry.get("rate_check"), f"{where} rate_check"),
        has_sparsity=_SPARSITY[entry["sparsity"]],
        half_rate_accumulate=entry.get("half_rate_accumulate", False),
    )
    check_plausible(device)
    return device


def _peaks(
    sources: Sources, table: Mapping[str, Any], dimension: Dimension, source: str, where: str
) -> Mapping[Precision, Quantity]:
    check_keys(table, where, optional=tuple(Precision))
    return {Precision(key): sources.quantity(value, dimension, source, f"{where} {key}") for key, value in table.items()}


def _rate_check(sources: Sources, table: Mapping[str, Any] | None, where: str) -> RateCheck | None:
    if table is None:
        return None
    check_keys(table, where, required=("precision", "cores", "per_clock", "clock_mhz", "source"))
    sources.get(table["source"], where)
    if table["precision"] not in set(Precision):
        raise ConfigError(f"{where}: {table['precision']!r} is not a precision; known are {', '.join(Precision)}")
    cores, per_clock, clock_mhz = (count_field(table, key, where) for key in ("cores", "per_clock", "clock_mhz"))
    return RateCheck(Precision(table["precision"]), cores, per_clock, clock_mhz * 1e6)


def _node(sources: Sources, entry: Mapping[str, Any], devices: Directory[Device]) -> Node:
    where = f"node {entry.get('name')!r}"
    optional = ("host_memory", "local_storage", "power")
    check_keys(entry, where, required=("name", "aliases", "device", "devices", "rails", "source"), optional=optional)

    def number(key: str, dimension: Dimension) -> Quantity | None:
        return sources.quantity(entry[key], dimension, entry["source"], f"{where} {key}") if key in entry else None

    name, aliases = names_of(entry, where)
    return Node(
        name=name,
        aliases=aliases,
        device=devices.find(entry["device"]),
        devices=count_field(entry, "devices", where),
        rails=count_field(entry, "rails", where),
        host_memory=number("host_memory", Dimension.BYTES),
        local_storage=number("local_storage", Dimension.BYTES),
        power=number("power", Dimension.WATTS),
    )
