"""`argosy chat`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from argosy.cli import flags
from argosy.engine.args import EngineArgs
from argosy.engine.core.sampling_params import SamplingParams
from argosy.errors import ConfigError

if TYPE_CHECKING:
    from argosy.cli.chat.answers import AnswerSource, ChatSettings

_ENGINE = EngineArgs(model="-")

EPILOG = """\
In the chat, /help lists the commands, Ctrl-C stops an answer, Alt-Enter starts a new line, Ctrl-D leaves.

\b
Examples:
  argosy chat smollm2-135m
  argosy chat smollm2-135m --system "Answer in one sentence." --temperature 0
  echo "Name the capital of France." | argosy chat smollm2-135m
  argosy chat --url http://127.0.0.1:8000
"""

OptionalModel = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="As in 'argosy serve'; with --url, a name the server knows.")
]
Url = Annotated[str | None, typer.Option(help="Talk to this server instead of loading a model.", metavar="URL")]
Key = Annotated[str | None, typer.Option(help="Key for --url.", metavar="KEY")]
System = Annotated[str | None, typer.Option(help="System prompt.", metavar="TEXT")]
Temperature = Annotated[float | None, typer.Option(help="0 always takes the likeliest token.", show_default="the model's")]
TopP = Annotated[float | None, typer.Option(help="Sample from this much probability.", show_default="the model's")]
MaxTokens = Annotated[int | None, typer.Option(help="Longest answer.", show_default="the rest of the context")]
Seed = Annotated[int | None, typer.Option(help="Repeatable answers.", show_default="drawn")]


def chat(
    model: OptionalModel = None,
    url: Url = None,
    api_key: Key = None,
    system: System = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    max_tokens: MaxTokens = None,
    seed: Seed = None,
    max_model_len: flags.MaxModelLen = _ENGINE.max_model_len,
    kv_cache_memory: flags.KvCacheMemory = _ENGINE.kv_cache_memory_bytes,
    dtype: flags.DType = _ENGINE.dtype,
    device: flags.Device = _ENGINE.device,
    executor: flags.ExecutorName = _ENGINE.executor,
    weights: flags.Weights = _ENGINE.weights,
    refine_outliers: flags.RefineOutliers = _ENGINE.refine_outliers,
    threads: flags.Threads = _ENGINE.threads,
    chat_template: flags.ChatTemplate = None,
    offline: flags.Offline = _ENGINE.offline,
    download_dir: flags.CacheDir = _ENGINE.cache_dir,
) -> None:
    """Talk to a model in the terminal.

    With input from a pipe, each line is a question and only the answers are printed.
    """
    import asyncio

    from argosy.cli.chat.answers import ChatSettings

    if model is None and url is None:
        raise ConfigError("name a MODEL, or a server with --url; 'argosy models' lists the known names")
    if api_key is not None and url is None:
        raise ConfigError("--api-key is for --url; a model in this process needs no key")
    settings = ChatSettings(temperature, top_p, max_tokens, seed)
    # Ranges are checked before a model is loaded, not at the first question.
    SamplingParams(**settings.given())
    engine_args = EngineArgs(
        model=model or "-",
        max_num_seqs=1,
        max_model_len=max_model_len,
        kv_cache_memory_bytes=kv_cache_memory,
        dtype=dtype,
        device=device,
        executor=executor,
        weights=weights,
        refine_outliers=refine_outliers,
        threads=threads,
        chat_template=flags.read_template(chat_template),
        offline=offline,
        cache_dir=download_dir,
    )
    if url is not None:
        if engine_args != EngineArgs(model=model or "-", max_num_seqs=1):
            raise ConfigError("--url talks to a running server, which has its own settings: give no engine options")
        asyncio.run(_chat_with_server(url, model, api_key, system, settings))
        return
    from argosy.cli.progress import fetch_model

    fetch_model(engine_args)
    if sys.stderr.isatty():
        print(f"loading {model} …", file=sys.stderr, flush=True)
    from argosy.cli.chat.local import LocalAnswers
    from argosy.engine.build import build_async_engine

    engine = build_async_engine(engine_args)
    try:
        asyncio.run(_converse(LocalAnswers(engine), system, settings))
    finally:
        engine.close()


async def _chat_with_server(
    url: str, model: str | None, key: str | None, system: str | None, settings: ChatSettings
) -> None:
    from argosy.cli.chat.remote import RemoteAnswers

    source = await RemoteAnswers.connect(url, model=model, api_key=key)
    try:
        await _converse(source, system, settings)
    finally:
        await source.close()


async def _converse(source: AnswerSource, system: str | None, settings: ChatSettings) -> None:
    from argosy.cli.chat.conversation import Conversation
    from argosy.cli.chat.loops import read_lines, talk
    from argosy.cli.chat.session import ChatSession
    from argosy.cli.chat.views import PlainView, TerminalView, View
    from argosy.models.cache import default_cache_dir

    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    view: View = TerminalView() if interactive else PlainView()
    session = ChatSession(source, view, conversation=Conversation(system), settings=settings, catch_interrupt=interactive)
    if not interactive:
        await read_lines(session)
        return
    view.notice(f"{source.model_name} · /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves")
    await talk(session, view, default_cache_dir() / "chat_history")
