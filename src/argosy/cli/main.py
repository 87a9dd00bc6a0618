"""Entry point of `argosy`: the commands, and the one place where errors become a line on stderr and an exit code.

Modules imported here are light; each command imports what it runs when it runs, so that `--help` and completion are quick.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from argosy import __version__
from argosy.cli import (
    bench_command,
    calibrate_command,
    chat_command,
    doctor_command,
    gateway_command,
    keys_command,
    models_command,
    plan_command,
    serve_command,
    simulate_command,
    version_command,
)
from argosy.cli.flags import in_flags
from argosy.cli.terminal import complain
from argosy.errors import (
    ArgosyError,
    ConfigError,
    ConfigFileError,
    InvalidRequest,
    ModelFileError,
    TraceFileError,
    UnknownModel,
    UnsupportedModel,
)

USAGE_ERRORS = (ConfigError, InvalidRequest, ModelFileError, UnknownModel, UnsupportedModel)
EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

EPILOG = """\
\b
Examples:
  argosy serve smollm2-135m     serve it over the OpenAI API on port 8000
  argosy chat smollm2-135m      talk to it in the terminal
  argosy models                 the models known by name, and which are here
  argosy plan --help            what a model takes: devices, memory, latency, price
  argosy simulate --help        a fleet under a workload, on a virtual clock
  argosy gateway --help         tenants, limits and routing in front of any engines

Every command explains itself with --help. A model is a known name, a .gguf file, a folder with safetensors files,
or hf:org/name[:file].
"""

app = typer.Typer(
    name="argosy",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve", epilog=serve_command.EPILOG)(serve_command.serve)
app.command("chat", epilog=chat_command.EPILOG)(chat_command.chat)
app.add_typer(models_command.app, name="models")
app.add_typer(plan_command.app, name="plan", short_help="Plan what to buy for a model and how to shard it.")
app.add_typer(gateway_command.app, name="gateway", short_help="One door for every tenant and every engine.")
app.add_typer(keys_command.app, name="keys", short_help="Manage the keys of a gateway's tenants.")
app.command("simulate", epilog=simulate_command.EPILOG)(simulate_command.simulate)
app.add_typer(bench_command.app, name="bench", short_help="Measure the engine, or a server under load.")
app.command("calibrate", epilog=calibrate_command.EPILOG)(calibrate_command.calibrate)
app.command("doctor")(doctor_command.doctor)
app.command("version")(version_command.version)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Run language models, and know beforehand what that will take."""
    if show_version:
        typer.echo(f"argosy {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line and exit. Never shows a traceback for what a person can cause."""
    _open_missing_streams()
    sys.exit(run(sys.argv[1:]))


def _told(error: ArgosyError) -> str:
    """The message as the command line has it: settings by their flags, but keys of a file as they are there."""
    is_of_flags = isinstance(error, ConfigError) and not isinstance(error, ConfigFileError | TraceFileError)
    return in_flags(error.message) if is_of_flags else error.message


def _open_missing_streams() -> None:
    """Python has None for a standard stream that was closed before it started, as some service managers do."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, it stays open as long as the process


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code: 0, 1 for a failure, 2 for a mistake in what was asked, 130 for Ctrl-C."""
    try:
        code = app(arguments, prog_name="argosy", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see '{context.command_path} --help')" if context is not None else ""
        complain(error.format_message() + hint)
        return error.exit_code
    except ArgosyError as error:
        complain(_told(error))
        return EXIT_USAGE if isinstance(error, USAGE_ERRORS) else EXIT_FAILURE
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone; without this the interpreter would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "argosy":
            raise
        complain(f"this command needs the package {error.name!r}: pip install 'argosy[serve]'")
        return EXIT_FAILURE
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        complain(f"{place}{error.strerror or error}")
        return EXIT_FAILURE
