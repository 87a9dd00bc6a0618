"""Frozen dataclasses from plain mappings, as YAML gives them: strict, with the dotted path of what is wrong.

A field's annotation is its schema: a number, a text, a flag, a dataclass, `X | None`, `tuple[X, ...]`, `Mapping[str, X]`,
or a union of dataclasses that tell themselves apart by a class variable `kind`. A union whose member has `from_number` also
takes a bare number; a class that has `from_settings(value, path)` reads itself. Every error carries the dotted path of what
is wrong as its `param`.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from argosy.errors import ConfigError

T = TypeVar("T")


def from_mapping(cls: type[T], value: object, path: str) -> T:
    """A `cls`, which is a dataclass, from a mapping of its fields.

    Args:
        path: what the mapping is called in messages, e.g. "workload"; "" for a whole file.

    Raises:
        ConfigError: not a mapping, a key that is unknown (the nearest known one is named) or missing, a value of another
            type, or one that `cls` refuses; every message begins with the path of the value.
    """
    known = {field.name: _is_needed(field) for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    return _call(cls, get_type_hints(cls), known, value, path)


def from_function(make: Callable[..., T], value: object, path: str) -> T:
    """What `make` makes of a mapping of its keyword arguments, whose annotations are the schema.

    Raises:
        ConfigError: as `from_mapping`.
    """
    known = {name: one.default is inspect.Parameter.empty for name, one in inspect.signature(make).parameters.items()}
    return _call(make, get_type_hints(make), known, value, path)


def _is_needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _call(make: Callable[..., T], hints: Mapping[str, Any], known: Mapping[str, bool], value: object, path: str) -> T:
    """`make` with arguments of the types of `hints`; `known` says of each name whether it is needed."""
    called = path or "the file"
    if not isinstance(value, Mapping):
        _refuse(path, f"{called} must be a mapping, got {_shown(value)}")
    for key in value:
        if key not in known:
            _refuse(_inside(path, key), f"{called} has an unknown key {_shown(key)}: {nearest(str(key), known)}")
    arguments = {key: _typed(hints[key], item, _inside(path, key)) for key, item in value.items()}
    for name, is_needed in known.items():
        if is_needed and name not in arguments:
            _refuse(path, f"{called} needs {name}")
    try:
        return make(**arguments)
    except ConfigError as error:
        named = error.param or next((name for name in arguments if error.message.startswith(f"{name} ")), None)
        message = f"{path}: {error}" if path else str(error)
        _refuse(path if named is None else _inside(path, named), message)


def _inside(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _refuse(path: str, message: str) -> NoReturn:
    raise ConfigError(message, param=path) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known: the nearest one, or all."""
    names = list(known)
    near = difflib.get_close_matches(name[:100], names, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"


def _typed(hint: Any, value: object, path: str) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        return _one_of(get_args(hint), value, path)
    if get_origin(hint) is tuple:
        return _list(get_args(hint), value, path)
    if get_origin(hint) is Mapping:
        return _mapping(get_args(hint)[1], value, path)
    if hasattr(hint, "from_settings"):
        return hint.from_settings(value, path)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        tag = _tag_of(hint)
        return from_mapping(hint, value, path) if tag is None else _tagged({tag: hint}, value, path)
    if hint is float:
        return _number(value, path)
    if hint is int:
        if isinstance(value, bool) or not isinstance(value, int):
            _refuse(path, f"{path} must be a whole number, got {_shown(value)}")
        return value
    if not isinstance(value, hint):
        words = {bool: "true or false", str: "a text"}
        _refuse(path, f"{path} must be {words[hint]}, got {_shown(value)}")
    return value


def _tag_of(hint: Any) -> str | None:
    """The class variable `kind` of a dataclass; one that is a field is a setting like any other."""
    if not dataclasses.is_dataclass(hint) or "kind" in {field.name for field in dataclasses.fields(hint)}:
        return None
    tag: str | None = getattr(hint, "kind", None)
    return tag


def _one_of(hints: tuple[Any, ...], value: object, path: str) -> Any:
    if value is None and type(None) in hints:
        return None
    rest = tuple(hint for hint in hints if hint is not type(None))
    kinds = {tag: hint for hint in rest if (tag := _tag_of(hint)) is not None}
    if not kinds:
        return _typed(rest[0], value, path)
    number = next((hint.from_number for hint in rest if hasattr(hint, "from_number")), None)
    if number is not None and not isinstance(value, Mapping):
        try:
            return number(_number(value, path))
        except ConfigError as error:
            _refuse(path, str(error) if str(error).startswith(path) else f"{path}: {error}")
    return _tagged(kinds, value, path)


def _tagged(kinds: dict[str, Any], value: object, path: str) -> Any:
    if not isinstance(value, Mapping):
        _refuse(path, f"{path} must be a mapping, got {_shown(value)}")
    if "kind" not in value:
        _refuse(path, f"{path} needs a kind: one of {', '.join(kinds)}")
    kind = value["kind"]
    if not isinstance(kind, str) or kind not in kinds:
        _refuse(f"{path}.kind", f"{path}.kind {_shown(kind)} is unknown: {nearest(str(kind), kinds)}")
    return from_mapping(kinds[kind], {key: item for key, item in value.items() if key != "kind"}, path)


def _list(hints: tuple[Any, ...], value: object, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        _refuse(path, f"{path} must be a list, got {_shown(value)}")
    if hints[-1] is Ellipsis:
        return tuple(_typed(hints[0], item, f"{path}[{position}]") for position, item in enumerate(value))
    if len(value) != len(hints):
        _refuse(path, f"{path} must be a list of {len(hints)}, got {_shown(value)}")
    return tuple(_typed(hint, item, f"{path}[{position}]") for position, (hint, item) in enumerate(zip(hints, value)))  # noqa: B905


def _mapping(hint: Any, value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        _refuse(path, f"{path} must be a mapping, got {_shown(value)}")
    return {str(key): _typed(hint, item, f"{path}.{key}") for key, item in value.items()}


def _number(value: object, path: str) -> float:
    # Comparing is exact for whole numbers of any size, where converting one would overflow.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        _refuse(path, f"{path} must be a finite number, got {_shown(value)}")
    return float(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
