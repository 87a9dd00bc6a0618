"""What a calibration found out about this machine: on disk, and as a device of the catalogue.

One JSON file per user holds the machine's device, and for every model and executor that was measured here its step times
and the roofline constants fitted to the same steps. It is written by `argosy calibrate` and read wherever a device called
`this-machine` is named.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from argosy.cost.calibration_file import Calibration, calibrations_text, packaged_calibrations, parse_calibrations
from argosy.cost.device import Device, Precision
from argosy.cost.measured_steps import MeasuredSteps, StepErrors
from argosy.cost.model_arithmetic import parameter_count
from argosy.cost.model_spec import ModelSpec
from argosy.cost.quantity import Dimension, Grade, Quantity
from argosy.errors import ConfigError

THIS_MACHINE = "this-machine"
ENGINE = "argosy"
"""Name of this package's own engine among those whose step times were measured."""
_FORMAT, _VERSION = "argosy-machine-calibration", 1
_FILE = "calibration.json"
_REMEDY = "run 'argosy calibrate MODEL'"


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """Step times of one model as it was served.

    Attributes:
        model: as the user named it; shape: see `shape_of`.
        executor, weights, kv_dtype, threads: how it ran; `weights` is the format that the cost model counts them in.
        argosy: version of the package; as_of: ISO date.
        steps: the curve; calibration: roofline constants fitted to the same steps, worse and for other models too.
    """

    model: str
    shape: tuple[int, ...]
    executor: str
    weights: str
    kv_dtype: str
    threads: str
    argosy: str
    as_of: str
    steps: MeasuredSteps
    calibration: Calibration


@dataclass(frozen=True, slots=True)
class MachineCalibration:
    """A machine and the models measured on it, the latest last."""

    device: Device
    models: tuple[MeasuredModel, ...]

    def steps_of(self, spec: ModelSpec, weights: str) -> MeasuredSteps | None:
        """The latest step times of a model of this shape with weights of this format; None if there are none."""
        shape = shape_of(spec)
        return next((one.steps for one in reversed(self.models) if (one.shape, one.weights) == (shape, weights)), None)

    def with_model(self, device: Device, measured: MeasuredModel) -> MachineCalibration:
        """This calibration with another measurement, which replaces one of the same model, executor and formats."""

        def key(one: MeasuredModel) -> tuple[str, ...]:
            return one.model, one.executor, one.weights, one.kv_dtype, one.threads

        kept = [one for one in self.models if key(one) != key(measured)]
        return MachineCalibration(device, (*kept, measured))


def shape_of(spec: ModelSpec) -> tuple[int, ...]:
    """Numbers that tell models apart whatever they are called: parameters, layers, hidden size, vocabulary."""
    return parameter_count(spec), spec.num_layers, spec.hidden_size, spec.vocab_size


def known_calibrations(device: str) -> tuple[Calibration, ...]:
    """Those of the package and then, if `device` is this machine's by name, its own: a CPU says nothing of other devices."""
    machine = load_machine()
    own = () if machine is None or machine.device.name != device else tuple(one.calibration for one in machine.models)
    return (*packaged_calibrations(), *own)


def calibration_path() -> Path:
    """`$ARGOSY_HOME`, else `$XDG_DATA_HOME/argosy`, else `~/.local/share/argosy`; the file in it."""
    if home := os.environ.get("ARGOSY_HOME"):
        return Path(home).expanduser() / _FILE
    if xdg := os.environ.get("XDG_DATA_HOME"):
        return Path(xdg).expanduser() / "argosy" / _FILE
    return Path.home() / ".local" / "share" / "argosy" / _FILE


def machine_text(machine: MachineCalibration) -> str:
    """JSON that `parse_machine` reads back."""
    device = machine.device
    value = {
        "format": _FORMAT,
        "version": _VERSION,
        "device": {
            "name": device.name,
            "notes": device.notes,
            "peak": {str(precision): asdict(quantity) for precision, quantity in device.peak.items()},
            "memory": asdict(device.memory),
            "memory_bandwidth": asdict(device.memory_bandwidth),
        },
        "models": [
            {**asdict(one), "calibration": json.loads(calibrations_text([one.calibration]))[0]} for one in machine.models
        ],
    }
    return json.dumps(value, indent=1) + "\n"


def parse_machine(text: str, origin: str) -> MachineCalibration:
    """Read `machine_text`; `origin` names the file in messages.

    Raises:
        ConfigError: not such a text.
    """
    try:
        value = json.loads(text)
        if (value["format"], value["version"]) != (_FORMAT, _VERSION):
            raise ConfigError(f"{origin}: {value['format']} {value['version']} is not {_FORMAT} {_VERSION}; {_REMEDY} again")
        models = tuple(_model(one) for one in value["models"])
        return MachineCalibration(_device(value["device"]), models)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{origin} is not a calibration ({error!r}); {_REMEDY} again") from None


def load_machine(path: Path | None = None) -> MachineCalibration | None:
    """The calibration at `path`, by default the user's; None if there is none.

    Raises:
        ConfigError: it cannot be read or is none.
    """
    path = calibration_path() if path is None else path
    try:
        return parse_machine(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"calibration {path} cannot be read: {error}") from error


def require_machine(path: Path | None = None) -> MachineCalibration:
    """As `load_machine`, where there must be one. Raises `ConfigError` otherwise."""
    machine = load_machine(path)
    if machine is None:
        raise ConfigError(f"this machine was not calibrated yet: {_REMEDY}")
    return machine


def save_machine(machine: MachineCalibration, path: Path | None = None) -> Path:
    """Write it, atomically, and return where; an `OSError` is the caller's to show."""
    path = calibration_path() if path is None else path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(machine_text(machine), encoding="utf-8")
    temporary.replace(path)
    return path


def is_this_machine(name: str) -> bool:
    """Whether `name` means the machine that this runs on."""
    return name.strip().lower().replace("_", "-").replace(" ", "-") == THIS_MACHINE


def _model(value: Mapping[str, Any]) -> MeasuredModel:
    steps = value["steps"]
    curve = {
        **steps,
        "knots": tuple(steps["knots"]),
        "rows_s": tuple(steps["rows_s"]),
        "fitted": StepErrors(**steps["fitted"]),
        "held_out": StepErrors(**steps["held_out"]),
    }
    (calibration,) = parse_calibrations(json.dumps([value["calibration"]]))
    return MeasuredModel(
        **{**value, "shape": tuple(value["shape"]), "steps": MeasuredSteps(**curve), "calibration": calibration}
    )


def _device(value: Mapping[str, Any]) -> Device:
    return Device(
        name=value["name"],
        aliases=(THIS_MACHINE,),
        kind="cpu",
        peak={Precision(name): _quantity(one) for name, one in value["peak"].items()},
        memory=_quantity(value["memory"]),
        memory_bandwidth=_quantity(value["memory_bandwidth"]),
        scale_up=None,
        scale_out=None,
        host=None,
        power=None,
        devices_per_node=1,
        notes=value["notes"],
    )


def _quantity(value: Mapping[str, Any]) -> Quantity:
    return Quantity(**{**value, "dimension": Dimension(value["dimension"]), "grade": Grade(value["grade"])})
