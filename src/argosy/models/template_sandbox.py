"""A Jinja sandbox with budgets: a template from a model file may not reach Python, nor take the process's memory or time.

Jinja's own sandbox blocks access to internals but bounds nothing. Here every loop step, operator, call and filter is
charged as a step, every string and collection that an operation makes is charged by its full size (so that values which
share parts cannot grow exponentially unseen), and the operations whose result can be far larger than their operands
(`*`, `**`, padding, `replace`, `join`, format widths) are measured before they run.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STEPS = 1_000_000
MAX_ELEMENTS = 1_000_000
MAX_CHARACTERS = 1 << 27
MAX_SECONDS = 10.0
MAX_WIDTH = 100_000
_MAX_INT_BITS = 4096
_MAX_JSON_INDENT = 16
# A width or precision of six digits or more, or one taken from an argument.
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{6})|\{[^{}]*:[^{}]*(?:\{|\d{6})")
_SIZED_FILTERS = frozenset({"batch", "center", "indent", "round", "slice", "tojson", "truncate", "wordwrap"})
# They make bytes, or replace each character by a string of any length.
_BLOCKED_ATTRIBUTES = frozenset({"encode", "maketrans", "to_bytes", "translate"})


class BudgetExceeded(TemplateError):
    """A template asked for more steps, characters or digits than a chat template can need."""


class Budget:
    """What one rendering may still spend. Mutable; belongs to one rendering."""

    def __init__(self) -> None:
        self.steps = MAX_STEPS
        self.elements = MAX_ELEMENTS
        self.characters = MAX_CHARACTERS
        self._deadline_s = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """Charge a loop iteration, an operator, a call or a filter."""
        self.steps -= 1
        if self.steps < 0:
            raise BudgetExceeded(f"it takes more than {MAX_STEPS} steps")
        if time.monotonic() > self._deadline_s:
            raise BudgetExceeded(f"it takes more than {MAX_SECONDS:g} s")

    def text(self, length: int) -> None:
        """Charge characters before or right after they come into being."""
        self.characters -= length
        if self.characters < 0:
            raise BudgetExceeded(f"it builds more than {MAX_CHARACTERS} characters of text")

    def collection(self, length: int) -> None:
        """Charge elements of lists and dicts."""
        self.elements -= length
        if self.elements < 0:
            raise BudgetExceeded(f"it builds lists of more than {MAX_ELEMENTS} elements")

    def value(self, value: Any) -> Any:
        """Charge a result by all it holds, shared parts as often as they occur, and return it."""
        if isinstance(value, str):
            self.text(len(value))
            return value
        stack = [value] if isinstance(value, (list, tuple, dict)) else []
        while stack:
            collection = stack.pop()
            self.collection(len(collection))
            items = (*collection, *collection.values()) if isinstance(collection, dict) else collection
            self.text(sum(len(item) for item in items if isinstance(item, str)))
            stack += [item for item in items if isinstance(item, (list, tuple, dict))]
        return value


class _TemplateNamespace(Namespace):
    """`namespace()` of templates, without dunder names that Python itself would look up."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise TemplateError(f"namespace attributes may not start with an underscore: {name!r}")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"  # the default shows all values, however deeply they share parts


def _namespace(**attributes: Any) -> Namespace:
    namespace = _TemplateNamespace()
    for name, value in attributes.items():
        namespace[name] = value
    return namespace


class _BudgetedCode(CodeGenerator):
    """Routes `~` and literals of collections through the environment, and counts the steps of `for` loops."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 (jinja2 names it)
        self.write("environment.join_operands((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        counted = nodes.Call(nodes.EnvironmentAttribute("count_steps"), [node.iter], [], None, None)
        node.iter = counted.set_environment(self.environment).set_lineno(node.lineno)
        super().visit_For(node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self.write("environment.budget.value(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self.write("environment.budget.value(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx != "load":  # the target of an assignment
            super().visit_Tuple(node, frame)
            return
        self.write("environment.budget.value(")
        super().visit_Tuple(node, frame)
        self.write(")")


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text for training; in serving it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        """The body of the block, in its own scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment for one rendering (or for compiling, where the budget is not spent).

    Follows the Hugging Face conventions for chat templates: trimmed blocks, `break` and `continue`, the generation tag.
    """

    code_generator_class = _BudgetedCode
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], cache_size=0)
        self.budget = Budget()
        self.globals |= {"dict": _new_dict, "namespace": _namespace}
        del self.globals["lipsum"]  # random text
        self.filters["tojson"] = _to_json
        self.filters = {name: self._charged_filter(name, function) for name, function in self.filters.items()}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Jinja's rule, and no way to bytes or to character tables."""
        return attr not in _BLOCKED_ATTRIBUTES and super().is_safe_attribute(obj, attr, value)

    def count_steps(self, iterable: Any) -> Any:
        """`iterable`, each element charged as one step. An undefined value keeps its own behaviour."""
        return iterable if not iterable else _Counted(iterable, self.budget)

    def join_operands(self, operands: Iterable[Any]) -> str:
        """The operator `~`."""
        self.budget.step()
        return self.concat(str(operand) for operand in operands)

    def concat(self, parts: Iterable[str]) -> str:
        """Joins pieces of output; Jinja calls it for blocks, macros and the whole text."""
        pieces = []
        for part in parts:
            self.budget.text(len(part))
            pieces.append(part)
        return "".join(pieces)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse what would be too large, then run the operator. Raises BudgetExceeded."""
        self.budget.step()
        if operator == "*":
            _check_product(left, right, self.budget)
        elif operator == "**":
            _check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        elif operator == "+" and isinstance(left, list):
            # What `left` holds was charged when it came into being; growing a list in a loop stays linear.
            self.budget.collection(len(left))
            self.budget.value(right)
            return super().call_binop(context, operator, left, right)
        return self.budget.value(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Charge a call and its result; refuse arguments that ask for a huge result."""
        self.budget.step()
        method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            values = [*args, *kwargs.values()]
            _check_numbers(method.__name__, values)
            self._check_text_operation(method.__name__, owner, values)
        return self.budget.value(super().call(context, obj, *args, **kwargs))

    def _charged_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        # Some filters take the context, evaluation context or environment first, and say so in this attribute.
        passes = getattr(function, "jinja_pass_arg", None)

        def charged(*args: Any, **kwargs: Any) -> Any:
            self.budget.step()
            subject, *values = [*(args[1:] if passes is not None else args), *kwargs.values()]
            if name in _SIZED_FILTERS:
                _check_numbers(name, values)
            self._check_text_operation(name, subject, values)
            result = function(*args, **kwargs)
            return iter(_Counted(result, self.budget)) if isinstance(result, Iterator) else self.budget.value(result)

        if passes is not None:
            charged.jinja_pass_arg = passes  # type: ignore[attr-defined]
        return charged

    def _check_text_operation(self, name: str, subject: Any, values: list[Any]) -> None:
        """Bound the result of a string method or filter before it is computed; `values` are its other arguments."""
        numbers = [value for value in values if isinstance(value, int)]
        texts = [value for value in values if isinstance(value, str)]
        if name == "join":
            self._charge_join(subject, values)
        elif name == "tojson" and max(numbers, default=0) > _MAX_JSON_INDENT:
            raise BudgetExceeded(f"tojson() gets an indent above {_MAX_JSON_INDENT}")
        elif name == "sum" and any(isinstance(value, (list, tuple)) for value in values):
            raise BudgetExceeded("sum() may only add numbers")
        if not isinstance(subject, str):
            return
        self.budget.text(len(subject))
        if name in ("format", "format_map"):
            _check_format(subject)
        elif name == "replace" and len(texts) >= 2:
            old, new = texts[0], texts[1]
            self.budget.text((subject.count(old) if old else len(subject) + 1) * len(new))
        elif name == "expandtabs":
            self.budget.text(subject.count("\t") * max(numbers, default=8))
        elif name == "indent":
            self.budget.text((subject.count("\n") + 1) * max([4, *numbers, *map(len, texts)]))

    def _charge_join(self, subject: Any, values: list[Any]) -> None:
        """Both `separator.join(items)` and `items | join(separator)`."""
        items, separators = (values[0] if values else (), [subject]) if isinstance(subject, str) else (subject, values)
        if isinstance(items, (list, tuple, str, dict)):
            longest = max((len(s) for s in separators if isinstance(s, str)), default=0)
            self.budget.text(len(items) * longest)
            self.budget.value(items)


class _Counted:
    """An iterable that charges its elements; `len()` works where it did, so that `loop.length` stays cheap."""

    def __init__(self, iterable: Iterable[Any], budget: Budget) -> None:
        self._iterable = iterable
        self._budget = budget

    def __iter__(self) -> Iterator[Any]:
        for element in self._iterable:
            self._budget.step()
            yield element

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """`dict()` of templates: a function, so that the type's own attributes are out of reach."""
    return dict(*args, **kwargs)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own `tojson`: no HTML escapes, and characters stay themselves."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _check_numbers(name: str, values: list[Any]) -> None:
    if any(isinstance(value, int) and abs(value) > MAX_WIDTH for value in values):
        raise BudgetExceeded(f"{name}() gets a number above {MAX_WIDTH}")


def _check_product(left: Any, right: Any, budget: Budget) -> None:
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, (str, list, tuple)) and isinstance(count, int):
            size = len(sequence) * max(count, 0)
            (budget.text if isinstance(sequence, str) else budget.collection)(size)
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _MAX_INT_BITS:
        raise BudgetExceeded("it multiplies numbers of more than a thousand digits")


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MAX_INT_BITS:
        raise BudgetExceeded("it raises a number to a power of more than a thousand digits")


def _check_format(template: str) -> None:
    if _WIDE_FORMAT.search(template):
        raise BudgetExceeded("a format has a width of six digits or more, or one taken from an argument")
