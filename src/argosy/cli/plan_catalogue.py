"""`argosy plan devices` and `argosy plan models`: what the planner knows by name, and from where."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from argosy.cli.terminal import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from argosy.cost.catalogue_models import CatalogueModel
    from argosy.cost.device import Device, Link
    from argosy.cost.quantity import Quantity


def show_devices(names: list[str], *, as_json: bool) -> None:
    """Print all devices, or everything about those named.

    Raises:
        ConfigError: a name is unknown; near ones are named.
    """
    from argosy.cost.catalogue import all_devices, find_device

    devices = [find_device(name) for name in names] if names else list(all_devices())
    if as_json:
        print_json([device_json(device) for device in devices])
        return
    from argosy.cli.plan_tables import legend, plan_console

    console = plan_console()
    if names:
        for device in devices:
            _device_sheet(console, device)
    else:
        _device_table(console, devices)
    legend(console)


def device_json(device: Device) -> dict[str, Any]:
    """A device with the provenance of every number, and its prices."""
    from argosy.cost.prices import prices_of
    from argosy.planner.plain import plain

    described: dict[str, Any] = plain({name: getattr(device, name) for name in device.__slots__})
    described["prices"] = [plain(price) for price in prices_of(device)]
    return described


def _device_table(console: Console, devices: list[Device]) -> None:
    from argosy.cli.plan_tables import print_table
    from argosy.cost.device import Precision
    from argosy.observe.report.figures import UNKNOWN, gib

    peaks = (Precision.BF16, Precision.FP8, Precision.FP4)
    columns = ("DEVICE", *(f"{precision} TF".upper() for precision in peaks), "MEMORY", "GB/S", "LINK", "W", "$/H")
    rows = [
        (
            device.name,
            *(_number(device.peak.get(precision), 1e12) for precision in peaks),
            _marked(gib(device.memory.value), device.memory),
            _number(device.memory_bandwidth, 1e9),
            _number(device.scale_up.bandwidth if device.scale_up else None, 1e9),
            UNKNOWN if device.power is None else _marked(f"{device.power.value:,.0f}", device.power),
            _price(device),
        )
        for device in devices
    ]
    print_table(console, columns, rows, right=columns[1:], drops=("W", "LINK", "FP4 TF"))
    console.print()
    console.print(
        "TF: dense peak in TFLOP/s. LINK: GB/s to its peers, one way. $/H: on demand, span of known prices.", style="dim"
    )


def _number(quantity: Quantity | None, unit: float) -> str:
    from argosy.observe.report.figures import UNKNOWN, significant

    return UNKNOWN if quantity is None else _marked(significant(quantity.value / unit, 4), quantity)


def _marked(text: str, quantity: Quantity) -> str:
    from argosy.planner.grades import marked

    return marked(text, quantity.grade)


def _price(device: Device) -> str:
    from argosy.cost.prices import Term, price_range, prices_of
    from argosy.observe.report.figures import UNKNOWN, usd_range
    from argosy.planner.grades import marked

    if not prices_of(device, term=Term.ON_DEMAND):
        return UNKNOWN
    known = price_range(device)
    return marked(usd_range(known.low_usd_per_h, known.high_usd_per_h), known.grade)


def _device_sheet(console: Console, device: Device) -> None:
    from argosy.cli.plan_tables import facts, heading, print_table
    from argosy.cost.prices import prices_of
    from argosy.observe.report.figures import usd_range

    heading(console, device.name)
    aliases = ", ".join(device.aliases)
    pairs = [("also", aliases)] if aliases else []
    pairs += [("kind", f"{device.kind}, {device.devices_per_node} in a node")]
    pairs += [("note", device.notes)] if device.notes else []
    facts(console, pairs)
    rows = [
        (name, _marked(_value(quantity), quantity), quantity.source, quantity.as_of)
        for name, quantity in _quantities(device)
    ]
    for price in prices_of(device):
        place = f" in {price.region}" if price.region else ""
        value = _marked(usd_range(price.low.value, price.high.value), price.low)
        rows.append((f"{price.term}{place}", value, f"{price.seller}: {price.low.source}", price.low.as_of))
    columns = ("QUANTITY", "VALUE", "SOURCE", "AS OF")
    print_table(console, columns, rows, right=("VALUE",), folds="SOURCE", drops=("AS OF",))


def _value(quantity: Quantity) -> str:
    from argosy.cost.quantity import Dimension
    from argosy.observe.report.figures import gib, seconds, si

    if quantity.dimension is Dimension.BYTES:
        return gib(quantity.value)
    return seconds(quantity.value) if quantity.dimension is Dimension.SECONDS else si(quantity.value, quantity.dimension)


def _quantities(device: Device) -> list[tuple[str, Quantity]]:
    named: list[tuple[str, Quantity]] = [(f"dense {precision}", peak) for precision, peak in device.peak.items()]
    named += [("memory", device.memory), ("memory bandwidth", device.memory_bandwidth)]
    links: list[tuple[str, Link | None]] = [
        ("to peers", device.scale_up),
        ("to other nodes", device.scale_out),
        ("to the host", device.host),
    ]
    for name, link in links:
        if link is not None:
            named += [(f"{name} ({link.name})", link.bandwidth), (f"{name}, latency", link.latency)]
    return named + ([("board power", device.power)] if device.power is not None else [])


def show_models(names: list[str], *, as_json: bool) -> None:
    """Print all models of the catalogue, or those named with their sources.

    Raises:
        ConfigError: a name is unknown; near ones are named.
    """
    from argosy.cost.catalogue import all_models, find_catalogue_model

    models = [find_catalogue_model(name) for name in names] if names else list(all_models())
    if as_json:
        print_json([model_json(model) for model in models])
        return
    from argosy.cli.plan_tables import legend, plan_console

    console = plan_console()
    _model_table(console, models)
    if names:
        _model_sources(console, models)
    legend(console)


def model_json(model: CatalogueModel) -> dict[str, Any]:
    """A model's counts and where its shape is from."""
    from argosy.cost.device import Precision
    from argosy.cost.model_arithmetic import ActiveConvention, active_parameters, kv_bytes_per_token, parameter_count

    spec = model.spec
    return {
        "name": spec.name,
        "aliases": list(model.aliases),
        "parameters": parameter_count(spec),
        "active_parameters": {str(way): active_parameters(spec, way) for way in ActiveConvention},
        "layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "max_positions": spec.max_positions,
        "kv_bytes_per_token_bf16": kv_bytes_per_token(spec, Precision.BF16),
        "published": asdict(model.published),
        "source": model.source,
        "grade": str(model.grade),
        "as_of": model.as_of,
    }


def _model_table(console: Console, models: list[CatalogueModel]) -> None:
    from argosy.cli.plan_tables import print_table
    from argosy.cost.device import Precision
    from argosy.cost.model_arithmetic import ActiveConvention, active_parameters, kv_bytes_per_token, parameter_count
    from argosy.observe.report.figures import count, significant
    from argosy.planner.grades import marked

    columns = ("MODEL", "PARAMETERS", "ACTIVE", "LAYERS", "HIDDEN", "VOCABULARY", "POSITIONS", "KV KIB/TOKEN")
    rows = [
        (
            marked(model.spec.name, model.grade),
            count(parameter_count(model.spec)),
            count(active_parameters(model.spec, ActiveConvention.WITH_INPUT_EMBEDDING)),
            str(model.spec.num_layers),
            str(model.spec.hidden_size),
            str(model.spec.vocab_size),
            str(model.spec.max_positions),
            significant(kv_bytes_per_token(model.spec, Precision.BF16) / 1024, 4),
        )
        for model in models
    ]
    print_table(console, columns, rows, right=columns[1:], drops=("HIDDEN", "VOCABULARY", "LAYERS"))
    console.print()
    console.print("ACTIVE counts the input embedding. KV in bf16 on one device, while no window is full.", style="dim")


def _model_sources(console: Console, models: list[CatalogueModel]) -> None:
    from argosy.cli.plan_tables import facts, heading

    heading(console, "Sources")
    facts(console, ((model.spec.name, f"{model.source} ({model.as_of})") for model in models))
