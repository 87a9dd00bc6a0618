"""`argosy keys`: the keys of a gateway's tenants."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from argosy.cli.terminal import print_json, printable
from argosy.errors import InvalidRequest

EPILOG = """\
\b
Examples:
  argosy keys create --config gateway.yaml --alias ci --rpm 60 --duration 30d
  argosy keys list --config gateway.yaml
  argosy keys rotate key_0123456789abcdef --grace 1d --config gateway.yaml
  argosy keys block key_0123456789abcdef --url http://127.0.0.1:4000

A key is shown once, when it is made; what is kept is a keyed hash and its last four characters. Keys are named by their
id, which spend and limits belong to and which a rotation leaves as it is.
"""

app = typer.Typer(rich_markup_mode=None, help="Manage the keys of a gateway's tenants.", epilog=EPILOG, no_args_is_help=True)

WHERE, RIGHTS, LIMITS = "Where", "What it may do", "How much"
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="The gateway's configuration; its database is used.", rich_help_panel=WHERE
    ),
]
Url = Annotated[str | None, typer.Option("--url", help="A running gateway instead.", rich_help_panel=WHERE)]
MasterKeyEnv = Annotated[
    str,
    typer.Option("--master-key-env", metavar="NAME", help="Environment variable with its key.", rich_help_panel=WHERE),
]
StoreUrl = Annotated[str | None, typer.Option("--store", help="URL of a database instead.", rich_help_panel=WHERE)]
SecretFile = Annotated[
    Path | None,
    typer.Option("--secret-file", metavar="FILE", help="The secret of the keys in it.", rich_help_panel=WHERE),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a script instead.")]
KeyId = Annotated[str, typer.Argument(metavar="KEY_ID", help="Id of the key, key_….", show_default=False)]
DEFAULT_KEY_ENV = "ARGOSY_MASTER_KEY"
FLAG_OF: Mapping[str, str] = MappingProxyType(
    {
        "key_alias": "--alias",
        "team_id": "--team",
        "organization_id": "--organization",
        "user_id": "--user",
        "models": "--model",
        "priority": "--priority",
        "duration": "--duration",
        "rpm_limit": "--rpm",
        "tpm_limit": "--tpm",
        "max_parallel_requests": "--max-parallel",
        "max_budget": "--max-budget",
        "budget_duration": "--budget-duration",
        "budget_id": "--budget",
        "grace_period": "--grace",
    }
)
"""Flag by the field of the admin API that it sets."""


@app.command("create")
def create(
    alias: Annotated[str | None, typer.Option("--alias", help="A name for people.")] = None,
    team: Annotated[str | None, typer.Option("--team", metavar="ID", help="Team it belongs to.")] = None,
    organization: Annotated[str | None, typer.Option("--organization", metavar="ID", help="Or organisation.")] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="User who owns it.")] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="Model it may use; repeatable.", rich_help_panel=RIGHTS)
    ] = None,
    priority: Annotated[
        str | None, typer.Option("--priority", help="critical, standard or best_effort.", rich_help_panel=RIGHTS)
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", help="Valid for, such as 30d.", rich_help_panel=RIGHTS)
    ] = None,
    rpm: Annotated[int | None, typer.Option("--rpm", help="Requests per minute.", rich_help_panel=LIMITS)] = None,
    tpm: Annotated[int | None, typer.Option("--tpm", help="Tokens per minute.", rich_help_panel=LIMITS)] = None,
    max_parallel: Annotated[
        int | None, typer.Option("--max-parallel", help="Requests at once.", rich_help_panel=LIMITS)
    ] = None,
    max_budget: Annotated[
        float | None, typer.Option("--max-budget", help="Dollars per period.", rich_help_panel=LIMITS)
    ] = None,
    budget_duration: Annotated[
        str | None, typer.Option("--budget-duration", help="The period, such as 30d.", rich_help_panel=LIMITS)
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="ID", help="Budget object with the rest.", rich_help_panel=LIMITS)
    ] = None,
    config: Config = None,
    url: Url = None,
    master_key_env: MasterKeyEnv = DEFAULT_KEY_ENV,
    store: StoreUrl = None,
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it, this once. Without a limit there is none."""
    fields = {
        "key_alias": alias,
        "team_id": team,
        "organization_id": organization,
        "user_id": user,
        "models": model or None,
        "priority": priority,
        "duration": duration,
        "rpm_limit": rpm,
        "tpm_limit": tpm,
        "max_parallel_requests": max_parallel,
        "max_budget": max_budget,
        "budget_duration": budget_duration,
        "budget_id": budget,
    }
    body = {name: value for name, value in fields.items() if value is not None}
    where = _where(config, url, master_key_env, store, secret_file)
    if config is not None and model:
        _check_models(model, config)
    _show_issued(_call(where, "POST", "/key/generate", body), as_json)


@app.command("list")
def list_keys(
    team: Annotated[str | None, typer.Option("--team", metavar="ID", help="Of this team only.")] = None,
    page: Annotated[int, typer.Option("--page", help="Which page.")] = 1,
    size: Annotated[int, typer.Option("--size", help="Keys per page.")] = 100,
    config: Config = None,
    url: Url = None,
    master_key_env: MasterKeyEnv = DEFAULT_KEY_ENV,
    store: StoreUrl = None,
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """List keys, a page at a time, in the order in which they were made."""
    query = {"page": page, "size": size, **({} if team is None else {"team_id": team})}
    where = _where(config, url, master_key_env, store, secret_file)
    found = _call(where, "GET", "/key/list", None, query)
    if as_json:
        print_json(found)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("KEY_ID", "KEY", "ALIAS", "TEAM", "STATE", "EXPIRES", "SPEND"):
        table.add_column(column, justify="right" if column == "SPEND" else "left", overflow="fold")
    for key in found["keys"]:
        table.add_row(
            *(printable(str(key[name] or "")) for name in ("key_id", "key_name", "key_alias", "team_id")),
            _state(key),
            key["expires"] or "never",
            f"${key['spend']:.4f}",
        )
    Console(highlight=False, markup=False).print(table)
    if found["total_pages"] > 1:
        typer.echo(f"page {found['current_page']} of {found['total_pages']}, {found['total_count']} keys", err=True)


@app.command("info")
def info(
    key_id: KeyId,
    config: Config = None,
    url: Url = None,
    master_key_env: MasterKeyEnv = DEFAULT_KEY_ENV,
    store: StoreUrl = None,
    secret_file: SecretFile = None,
) -> None:
    """Print all that is known of a key, as JSON."""
    where = _where(config, url, master_key_env, store, secret_file)
    print_json(_call(where, "GET", "/key/info", None, {"key": key_id})["info"])


@app.command("rotate")
def rotate(
    key_id: KeyId,
    grace: Annotated[str | None, typer.Option("--grace", help="The old one stays valid for, such as 1d.")] = None,
    config: Config = None,
    url: Url = None,
    master_key_env: MasterKeyEnv = DEFAULT_KEY_ENV,
    store: StoreUrl = None,
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """Give a key another secret and print that, this once. Its id, limits and spend stay."""
    body = {"key": key_id, **({} if grace is None else {"grace_period": grace})}
    where = _where(config, url, master_key_env, store, secret_file)
    _show_issued(_call(where, "POST", "/key/regenerate", body), as_json)


@app.command("block")
def block(
    key_id: KeyId,
    config: Config = None,
    url: Url = None,
    master_key_env: MasterKeyEnv = DEFAULT_KEY_ENV,
    store: StoreUrl = None,
    secret_file: SecretFile = None,
) -> None:
    """Refuse a key until it is unblocked."""
    _call(_where(config, url, master_key_env, store, secret_file), "POST", "/key/block", {"key": key_id})


@app.command("unblock")
def unblock(
    key_id: KeyId,
    config: Config = None,
    url: Url = None,
    master_key_env: MasterKeyEnv = DEFAULT_KEY_ENV,
    store: StoreUrl = None,
    secret_file: SecretFile = None,
) -> None:
    """Accept a blocked key again."""
    _call(_where(config, url, master_key_env, store, secret_file), "POST", "/key/unblock", {"key": key_id})


@app.command("expire")
def expire(
    key_id: KeyId,
    in_: Annotated[str | None, typer.Option("--in", help="Valid for that long yet, such as 12h; else it ends now.")] = None,
    config: Config = None,
    url: Url = None,
    master_key_env: MasterKeyEnv = DEFAULT_KEY_ENV,
    store: StoreUrl = None,
    secret_file: SecretFile = None,
) -> None:
    """End a key, at once or in a while."""
    from datetime import UTC, datetime

    end = {"expires": datetime.now(UTC).isoformat()} if in_ is None else {"duration": in_}
    where = _where(config, url, master_key_env, store, secret_file)
    _call(where, "POST", "/key/update", {"key": key_id, **end}, flag_of={**FLAG_OF, "duration": "--in"})


@app.command("delete")
def delete(
    key_ids: Annotated[list[str], typer.Argument(metavar="KEY_ID", help="Ids of keys.", show_default=False)],
    config: Config = None,
    url: Url = None,
    master_key_env: MasterKeyEnv = DEFAULT_KEY_ENV,
    store: StoreUrl = None,
    secret_file: SecretFile = None,
) -> None:
    """Delete keys, all or none. What they spent stays in the reports."""
    _call(_where(config, url, master_key_env, store, secret_file), "POST", "/key/delete", {"keys": key_ids})


def _where(
    config: Path | None, url: str | None, master_key_env: str, store: str | None, secret_file: Path | None
) -> dict[str, Any]:
    return {
        "config": config,
        "url": url,
        "master_key_env": master_key_env,
        "store": store,
        "secret_file": secret_file,
    }


def _call(
    where: Mapping[str, Any],
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    query: Mapping[str, Any] | None = None,
    flag_of: Mapping[str, str] = FLAG_OF,
) -> Any:
    from argosy.cli.admin_client import AdminTarget, call_admin

    try:
        return call_admin(AdminTarget(**where), method, path, body, query)
    except InvalidRequest as error:
        raise InvalidRequest(_in_flags(error.message, flag_of)) from None


def _in_flags(message: str, flag_of: Mapping[str, str]) -> str:
    """`message` with fields of the API as flags. Names of one word are fields only where the message begins with them."""

    def flag(name: re.Match[str]) -> str:
        is_field = name.start() == 0 or "_" in name[0]
        return flag_of.get(name[0], name[0]) if is_field else name[0]

    return re.sub(r"(?<![\w'/-])[a-z]+(?:_[a-z]+)*(?![\w'])", flag, message)


def _check_models(names: Sequence[str], config: Path) -> None:
    """Raise `InvalidRequest` for a model that the gateway of `config` does not serve: the key could never use it."""
    from argosy.fleet.gateway.config import load_config

    known = load_config(config).model_of
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(list(known)[:20])}"
            raise InvalidRequest(f"--model: {config} has no model {name[:80]!r}; {hint}")


def _state(key: Mapping[str, Any]) -> str:
    from datetime import UTC, datetime

    if key["blocked"]:
        return "blocked"
    is_over = key["expires"] is not None and datetime.fromisoformat(key["expires"]) <= datetime.now(UTC)
    return "expired" if is_over else "active"


def _show_issued(issued: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(issued)
        return
    typer.echo(f"{issued['key_id']}: keep this key, it is not shown again", err=True)
    typer.echo(issued["key"])
