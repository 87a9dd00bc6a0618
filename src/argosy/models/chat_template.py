"""Chat templates: from messages to the text a model was trained on.

A template is Jinja source that comes with the model, so it runs in a sandbox. Names and options follow Hugging Face's
`apply_chat_template`, so that published templates render byte for byte as they do there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import CodeType
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes

from argosy.errors import ConfigError, InvalidRequest
from argosy.models.template_sandbox import BudgetExceeded, TemplateSandbox

MAX_SOURCE_CHARACTERS = 1 << 20
_MAX_DATE_FORMAT = 200
_WIDE_DATE = re.compile(r"%[^a-zA-Z%]*\d{3}")  # the C library pads a field to any width
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"})
# Ends with a space: a template that trims messages also trims it, which shows where the trimmed message ends.
_CONTINUE_MARK = "\ue0f7continue here\ue0f8 "


class ChatTemplate:
    """A compiled template. Immutable and safe to use from several threads: every rendering gets its own sandbox.

    Content given as a list of parts stays a list for a template that loops over parts; for any other its text parts are
    joined with newlines. Parts other than text are refused: the models here read text only.

    Args:
        source: Jinja source.
        now: local time for templates that print today's date (`strftime_now`).

    Raises:
        ConfigError: the source is too long or does not compile.
    """

    def __init__(self, source: str, *, now: Callable[[], datetime] = datetime.now) -> None:
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise ConfigError(f"the chat template is longer than {MAX_SOURCE_CHARACTERS} characters")
        self.source = source
        self._now = now
        self._code, self.reads_content_parts = _compile(source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        special_tokens: Mapping[str, str] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages`, special tokens spelled out; mutates none of its arguments.

        Args:
            messages: OpenAI-style messages; JSON-encoded `tool_calls[].function.arguments` are decoded for the template.
            add_generation_prompt: end with the header of the assistant's turn.
            continue_final_message: end inside the last message, so that the model goes on writing it.
            special_tokens: `bos_token`, `eos_token` … as the template knows them.
            variables: further variables, e.g. `documents` or `enable_thinking`.

        Raises:
            InvalidRequest: the template refuses the messages, fails on them, or takes too much time or memory.
        """
        variables = dict(variables or {})
        taken = sorted(_RESERVED & variables.keys())
        if taken:
            raise InvalidRequest(f"chat_template_kwargs may not set {taken[0]!r}", param=f"chat_template_kwargs.{taken[0]}")
        plain = [self._plain_message(message, index) for index, message in enumerate(messages)]
        if continue_final_message:
            if add_generation_prompt:
                raise InvalidRequest(
                    "continue_final_message and add_generation_prompt exclude each other; set one of them to false",
                    param="continue_final_message",
                )
            _mark_end(plain)
        context = {"documents": None, **(special_tokens or {}), **variables}
        context |= {"messages": plain, "tools": _plain(tools), "add_generation_prompt": add_generation_prompt}
        text = self._run(context)
        return _cut_at_mark(text) if continue_final_message else text

    def _run(self, context: Mapping[str, Any]) -> str:
        sandbox = TemplateSandbox()
        sandbox.globals |= {"raise_exception": _raise_exception, "strftime_now": self._strftime_now}
        template = Template.from_code(sandbox, self._code, sandbox.globals)
        try:
            return sandbox.concat(template.root_render_func(template.new_context(dict(context))))
        except BudgetExceeded as error:
            raise InvalidRequest(f"the chat template is stopped: {error}", param="messages") from error
        except TemplateError as error:
            raise InvalidRequest(f"the chat template refuses the messages: {_one_line(error)}", param="messages") from error
        except RecursionError as error:
            raise InvalidRequest("the chat template is stopped: it recurses too deeply", param="messages") from error
        except (MemoryError, OverflowError) as error:
            raise InvalidRequest("the chat template is stopped: it asks for too much memory", param="messages") from error
        except Exception as error:  # a template may raise whatever Python expressions raise
            kind = type(error).__name__
            raise InvalidRequest(
                f"the chat template fails on these messages: {kind}: {_one_line(error)}", param="messages"
            ) from error

    def _strftime_now(self, format_: str) -> str:
        if not isinstance(format_, str) or len(format_) > _MAX_DATE_FORMAT or _WIDE_DATE.search(format_):
            raise TemplateError("strftime_now() gets an unreasonable format")
        return self._now().strftime(format_)

    def _plain_message(self, message: Mapping[str, Any], index: int) -> dict[str, Any]:
        plain = {key: value for key, value in _plain(message).items() if value is not None}
        plain["content"] = self._content(plain.get("content"), f"messages[{index}].content")
        if "tool_calls" in plain:
            plain["tool_calls"] = _decode_arguments(plain["tool_calls"], f"messages[{index}].tool_calls")
        return plain

    def _content(self, content: Any, param: str) -> str | list[Any]:
        if content is None:
            return ""
        if not isinstance(content, list):
            return str(content)
        parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
        for position, part in enumerate(parts):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text" or not isinstance(part.get("text"), str):
                raise InvalidRequest(
                    f"content parts must be of type 'text' with a text, not {kind!r}: this model reads text only",
                    param=f"{param}[{position}]",
                )
        return parts if self.reads_content_parts else "\n".join(part["text"] for part in parts)


def _compile(source: str) -> tuple[CodeType, bool]:
    sandbox = TemplateSandbox()
    try:
        reads_parts = _loops_over_content(sandbox.parse(source))
        return sandbox.compile(source), reads_parts
    except TemplateSyntaxError as error:
        raise ConfigError(f"the chat template does not compile: line {error.lineno}: {_one_line(error.message)}") from error
    except (TemplateError, RecursionError, MemoryError, SyntaxError, ValueError, OverflowError) as error:
        raise ConfigError(f"the chat template does not compile: {type(error).__name__}: {_one_line(error)}") from error


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether a `for` runs over `message.content`, or over a variable or macro argument that stands for it."""
    names = {"content"}
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, names):
            names.add(assign.target.name)
    return any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names


def _plain(value: Any) -> Any:
    """A copy made of plain JSON types, so that a template finds no methods but theirs."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise InvalidRequest(f"a message holds a {type(value).__name__}, which is not a JSON value", param="messages")


def _decode_arguments(calls: Any, param: str) -> list[dict[str, Any]]:
    """Tool calls with `function.arguments` as an object: OpenAI sends JSON text, templates expect the object."""
    decoded = []
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            try:
                arguments = json.loads(function["arguments"] or "{}")
            except json.JSONDecodeError as error:
                raise InvalidRequest(
                    f"the arguments of a tool call are not valid JSON ({error})",
                    param=f"{param}[{index}].function.arguments",
                ) from error
            call = {**call, "function": {**function, "arguments": arguments}}
        decoded.append(call)
    return decoded


def _mark_end(messages: list[dict[str, Any]]) -> None:
    """Mutates the last message: a mark behind its text shows where to cut the rendered prompt."""
    content = messages[-1]["content"] if messages else ""
    if not content:
        raise InvalidRequest("continue_final_message needs a last message with text", param="continue_final_message")
    if isinstance(content, str):
        messages[-1]["content"] = content + _CONTINUE_MARK
    else:
        content[-1] = {**content[-1], "text": content[-1]["text"] + _CONTINUE_MARK}


def _cut_at_mark(text: str) -> str:
    at = text.rfind(_CONTINUE_MARK.strip())
    if at < 0:
        raise InvalidRequest(
            "the chat template does not show the last message, so it cannot be continued", param="continue_final_message"
        )
    trimmed = not text.startswith(_CONTINUE_MARK, at)
    return text[:at].rstrip() if trimmed else text[:at]


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message))


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]
