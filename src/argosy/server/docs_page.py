"""The API document as one HTML page without scripts or anything from another host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
h2{font-size:1.05rem;margin-top:2.2rem;border-bottom:1px solid #d0d7de;padding-bottom:.3rem}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0}
code{font-family:ui-monospace,monospace;font-size:.92em}summary{cursor:pointer;margin:.4rem 0}
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}h2{border-color:#30363d}a{color:#6cb6ff}}
"""


def render_docs(document: Mapping[str, Any]) -> str:
    """`document` is an OpenAPI description; every operation is listed with its fields and answers."""
    title = f"{document['info']['title']} {document['info']['version']}"
    body = "".join(_operations(document))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f'<h1>{escape(title)}</h1><p>The OpenAI API. As data: <a href="openapi.json">openapi.json</a>.</p>{body}</html>'
    )


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    schemas = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{_prose(operation.get('description', ''))}</p>"
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content:
                yield _fields("Request", schemas[_ref_name(content["schema"])])
            for status, response in operation["responses"].items():
                schema = response.get("content", {}).get("application/json", {}).get("schema", {})
                summary = f"{status} {response.get('description', '')}"
                yield _fields(summary, schemas[_ref_name(schema)]) if "$ref" in schema else f"<p>{_prose(summary)}</p>"


def _fields(summary: str, schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code>{' *' if name in required else ''}"
        f"<td>{escape(_type_of(field))}<td>{_prose(field.get('description', ''))}"
        for name, field in schema.get("properties", {}).items()
    )
    return f"<details><summary>{_prose(summary)}</summary><table>{rows}</table></details>"


def _prose(text: str) -> str:
    """`text` as HTML, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _type_of(field: Mapping[str, Any]) -> str:
    for union in ("anyOf", "oneOf"):
        if union in field:
            return " or ".join(dict.fromkeys(_type_of(member) for member in field[union]))
    if "$ref" in field:
        return _ref_name(field)
    if "enum" in field or "const" in field:
        return "one of " + ", ".join(repr(value) for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"array of {_type_of(field.get('items', {}))}"
    bounds = [f"{sign} {field[key]}" for key, sign in _BOUNDS.items() if key in field]
    return " ".join([field.get("type", "any"), *bounds])


_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "maxLength": "length ≤"}


def _ref_name(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]
