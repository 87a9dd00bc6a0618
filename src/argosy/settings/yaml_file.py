"""YAML as plain values, with the line of every one of them.

Scalars follow YAML 1.2's core schema: `on` is a text, `1e3` is a number, `12:30` is no number of seconds. A key given twice
is refused, for one of the two would be ignored. Aliases (`*name`) repeat what an anchor (`&name`) holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from argosy.errors import ConfigError, ConfigFileError, TraceFileError

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_FLAGS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_WHOLE = re.compile(r"[-+]?[0-9][0-9_]*")
_REAL = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_MOST_VALUES, _DEEPEST = 1_000_000, 64


class _Loader(yaml.SafeLoader):
    """Resolves no scalar: `_scalar` does, by the core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012, PyYAML's own attribute


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A configuration as it stands in a file.

    Attributes:
        name: of the file, for messages.
        text: as it was written.
        values: plain values: mappings, lists, texts, numbers, flags, None.
        lines: by dotted path as `settings.schema` writes it, e.g. `replicas[0].engine`, the line from 1.
    """

    name: str
    text: str
    values: Any
    lines: dict[str, int]

    def located(self, error: ConfigError) -> ConfigError:
        """`error` with the file and the line of its `param`, or of the nearest thing around that.

        A fault in another file, which is named already, stays as it is.
        """
        if isinstance(error, TraceFileError):
            return error
        path = error.param or ""
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return ConfigFileError(f"{self.name}:{self.lines.get(path, 1)}: {error.message}", param=error.param)


def read_yaml(path: Path, *, if_empty: str = "it says nothing") -> YamlFile:
    """The file at `path`.

    Args:
        if_empty: what a message about an empty file goes on with, such as where to find an example.

    Raises:
        ConfigFileError: it cannot be read, or is not the YAML described above; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigFileError(f"configuration {path} cannot be read: {reason}") from error
    return parse_yaml(text, str(path), if_empty=if_empty)


def parse_yaml(text: str, name: str, *, if_empty: str = "it says nothing") -> YamlFile:
    """As `read_yaml`, of a text; `name` is what messages call it."""
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        what = " ".join((getattr(error, "problem", None) or str(error)).split())
        remedy = "; indent with spaces" if r"'\t'" in what else ""
        raise ConfigFileError(f"{name}:{line}: is not YAML: {what}{remedy}") from None
    if node is None:
        raise ConfigFileError(f"{name}: is empty; {if_empty}")
    reader = _Reader(name)
    return YamlFile(name, text, reader.value(node, "", 0), reader.lines)


class _Reader:
    """From nodes to values, noting lines on the way."""

    def __init__(self, name: str) -> None:
        self.lines: dict[str, int] = {}
        self._name = name
        self._num_values = 0

    def value(self, node: yaml.Node, path: str, depth: int) -> Any:
        self._num_values += 1
        if self._num_values > _MOST_VALUES or depth > _DEEPEST:
            self._refuse(
                node, f"holds more than {_MOST_VALUES} values or is nested deeper than {_DEEPEST}; are aliases nested?"
            )
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return {
                key: self.value(item, f"{path}.{key}" if path else key, depth + 1) for key, item in self._pairs(node, path)
            }
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(node.value)]
        return self._scalar(node)

    def _pairs(self, node: yaml.MappingNode, path: str) -> Iterator[tuple[str, yaml.Node]]:
        seen: set[str] = set()
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._refuse(key, "has a key that is not a text")
            if key.value in seen:
                self._refuse(key, f"{path or 'the file'} has the key {key.value!r} twice; one of the two would be ignored")
            seen.add(key.value)
            self.lines[f"{path}.{key.value}" if path else key.value] = key.start_mark.line + 1
            yield key.value, item

    def _scalar(self, node: yaml.Node) -> Any:
        assert isinstance(node, yaml.ScalarNode), "the other kinds hold values"
        text = node.value
        if node.tag not in ("tag:yaml.org,2002:str", "!"):
            self._refuse(node, f"has the tag {node.tag!r}; only plain values are read")
        if node.style is not None:
            return text
        if text in _NULL:
            return None
        if text in _FLAGS:
            return _FLAGS[text]
        if _WHOLE.fullmatch(text):
            return int(text.replace("_", ""))
        if _REAL.fullmatch(text):
            number = float(text.replace("_", ""))
            if math.isinf(number):
                self._refuse(node, f"has the number {text}, which is too large")
            return number
        return text

    def _refuse(self, node: yaml.Node, what: str) -> NoReturn:
        raise ConfigFileError(f"{self._name}:{node.start_mark.line + 1}: {what}")
