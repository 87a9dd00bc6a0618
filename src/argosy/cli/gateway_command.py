"""`argosy gateway`: run one, check its configuration, take over another gateway's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from argosy.cli.serve_command import is_loopback
from argosy.cli.terminal import print_json, printable, warn
from argosy.errors import InvalidRequest

if TYPE_CHECKING:
    from argosy.fleet.gateway.config import GatewayConfig

EPILOG = """\
\b
Examples:
  argosy gateway gateway.yaml                    run it
  argosy gateway gateway.yaml --check            what it would do, and whether it could
  argosy gateway import-litellm config.yaml > gateway.yaml
  argosy gateway dashboard > argosy.json         for Grafana
  argosy gateway alert-rules > alerts.yaml       for Prometheus

SIGHUP, or a change of the file, reads the configuration again; a file that is wrong changes nothing. SIGTERM or Ctrl-C
lets requests finish (resilience.drain); a second one quits at once.
"""


class _RunsByDefault(TyperGroup):
    """`argosy gateway FILE` is `argosy gateway run FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `run` in front of what names no command and asks for no help."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_RunsByDefault, rich_markup_mode=None, epilog=EPILOG)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of the gateway.", show_default=False)]
Check = Annotated[bool, typer.Option("--check", help="Check the configuration, show what it comes to, and exit.")]
AsJson = Annotated[bool, typer.Option("--json", help="With --check, print JSON for a script.")]
Host = Annotated[str | None, typer.Option("--host", help="In place of listen.host.", show_default=False)]
Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="In place of listen.port; 0 takes a free one.", show_default=False),
]


@app.callback(invoke_without_command=True)
def gateway(context: typer.Context) -> None:
    """One door for every tenant and every engine: limits, queues, routing, usage, in front of OpenAI-compatible servers."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("run")
def run(config: ConfigFile, check: Check = False, as_json: AsJson = False, host: Host = None, port: Port = None) -> None:
    """Run a gateway; `argosy gateway CONFIG` is the same."""
    from argosy.fleet.gateway.config import load_config, read_secrets

    def amend(loaded: GatewayConfig) -> GatewayConfig:
        listen = loaded.listen if host is None else replace(loaded.listen, host=host)
        return replace(loaded, listen=listen if port is None else replace(listen, port=port))

    if as_json and not check:
        raise InvalidRequest("--json goes with --check")
    loaded = amend(load_config(config))
    if check:
        from argosy.fleet.gateway.service_parts import check_start

        _show(loaded, as_json=as_json)
        check_start(loaded, read_secrets(loaded))
        return
    secrets = read_secrets(loaded)
    if loaded.auth.mode == "open" and not is_loopback(loaded.listen.host):
        warn(f'{loaded.listen.host} can be reached by others, and auth.mode is "open": anyone who can may use the models')
    from argosy.fleet.gateway.run import run_gateway

    def greet(url: str) -> None:
        if loaded.observability.log_format == "text":
            names = ", ".join(model.name for model in loaded.models)
            typer.echo(f"\ngateway at {url} (metrics: {url}/metrics) for {printable(names)}\nCtrl-C stops.\n")

    raise typer.Exit(run_gateway(config, loaded, secrets, amend=amend, on_started=greet))


@app.command("import-litellm")
def import_litellm(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Configuration of a LiteLLM proxy.", show_default=False)],
) -> None:
    """Print a LiteLLM proxy's configuration as one for this gateway; what does not come over is said on stderr."""
    from argosy.fleet.gateway.litellm_import import import_litellm as take_over

    imported = take_over(file)
    typer.echo(imported.text, nl=False)
    for note in imported.notes:
        warn(note)


@app.command("dashboard")
def dashboard() -> None:
    """Print a Grafana dashboard of the gateway's metrics."""
    from argosy.fleet.gateway.dashboard import dashboard_json

    typer.echo(dashboard_json(), nl=False)


@app.command("alert-rules")
def alert_rules(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="Take the thresholds of this gateway.", show_default=False)
    ] = None,
) -> None:
    """Print Prometheus alert rules on the gateway's metrics."""
    from argosy.fleet.gateway.config import load_config
    from argosy.fleet.gateway.dashboard import alert_rules_yaml

    thresholds = None if config is None else load_config(config).observability.alerts
    typer.echo(alert_rules_yaml(thresholds), nl=False)


def _show(config: GatewayConfig, *, as_json: bool) -> None:
    from argosy.cli.gateway_tables import show_config, summary_of

    if as_json:
        print_json(summary_of(config))
    else:
        show_config(config)
