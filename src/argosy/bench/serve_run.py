"""One run of a load against a server: find its model, make the prompts, warm up, send, count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from argosy.bench.generator import Generator, OnRecord, Prepared, Run
from argosy.bench.http_exchange import ConnectionPool, Origin
from argosy.bench.load import PlannedRequest
from argosy.bench.prompts import PromptMaker
from argosy.bench.records import RequestRecord
from argosy.bench.serve_result import ServeResult, summarise
from argosy.bench.slo import ServiceLevel
from argosy.bench.target import Target, find_model
from argosy.bench.token_counters import LocalCounter, RemoteCounter, TokenCounter
from argosy.errors import ConfigError, EngineUnavailable

SETUP_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
OnPrepared = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How to send a load.

    Attributes:
        concurrency: requests under way at once in a closed loop; None sends each when it is due.
        duration_s: a closed loop sends nothing after it.
        num_warmup: requests sent before, four at once and not counted.
        timeout_s: after which an answer counts as failed.
        seed: of the prompts' texts.
    """

    concurrency: int | None = None
    duration_s: float | None = None
    num_warmup: int = 4
    timeout_s: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a number out of range."""
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(f"--concurrency must be at least 1, got {self.concurrency}")
        if self.num_warmup < 0:
            raise ConfigError(f"--warmup must not be negative, got {self.num_warmup}")
        for flag, value in (("--duration", self.duration_s), ("--timeout", self.timeout_s)):
            if value is not None and not value > 0:
                raise ConfigError(f"{flag} must be above 0 seconds, got {value:g}")


class Client:
    """A target, and who counts its tokens. A context manager: closes its connection for set-up calls.

    Args:
        tokenizer: model whose tokenizer counts; None asks the server.

    Raises:
        EngineUnavailable, Unauthorized, UnknownModel: see `find_model`.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        endpoint: str = "completions",
        ignore_eos: bool = True,
        extra_body: dict[str, Any] | None = None,
        tokenizer: str | None = None,
    ) -> None:
        origin = Origin.parse(base_url)
        target = Target(origin, model or "", endpoint, ignore_eos=ignore_eos, extra_body=extra_body or {}, api_key=api_key)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # Measured is the server, not a proxy that the environment names.
        self._http = httpx.Client(timeout=SETUP_TIMEOUT, headers=headers, trust_env=False)
        try:
            name, max_model_len = find_model(self._http, origin, model)
            self.target = replace(target, model=name, max_model_len=max_model_len)
            self.counter: TokenCounter | None
            if tokenizer is not None:
                self.counter = LocalCounter.load(tokenizer)
            else:
                self.counter = RemoteCounter.find(self._http, origin.url, name)
        except BaseException:
            self._http.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.close()

    def prepare(self, load: Sequence[PlannedRequest], seed: int, on_prepared: OnPrepared | None = None) -> list[Prepared]:
        """The bytes of every request, made before the clock runs.

        Raises:
            ConfigError: a request is longer than the server takes, or cannot be made.
        """
        for planned in load:
            self.target.check_fits(planned)
        try:
            maker, prepared = PromptMaker(self.counter, seed=seed), []
            for planned in load:
                prepared.append(Prepared(planned, self.target.request(planned, maker.make(planned))))
                if on_prepared is not None:
                    on_prepared(len(prepared), len(load))
        except httpx.HTTPError as error:
            raise EngineUnavailable(
                f"{self.target.origin.url} stopped answering while prompts were made: {error}"
            ) from error
        return prepared

    def run(
        self,
        load: Sequence[Prepared],
        warmup: Sequence[Prepared],
        settings: ServeSettings,
        *,
        slo: ServiceLevel | None = None,
        on_record: OnRecord | None = None,
    ) -> tuple[Run, ServeResult]:
        """Warm up, send the load, and count what came.

        Raises:
            EngineUnavailable: no warm-up request was answered.
        """
        run = _run_in_loop(self._send(load, warmup, settings, on_record))
        count = None if self.counter is None else self.counter.count_output
        return run, summarise(run, slo=slo, count_output=count)

    async def _send(
        self, load: Sequence[Prepared], warmup: Sequence[Prepared], settings: ServeSettings, on_record: OnRecord | None
    ) -> Run:
        clock = time.perf_counter
        pool = ConnectionPool(self.target.origin, clock)
        try:
            if warmup:
                first = await Generator(pool, clock, timeout_s=settings.timeout_s).closed_loop(warmup, 4)
                _check_warmup(first.records)
            generator = Generator(pool, clock, timeout_s=settings.timeout_s, on_record=on_record)
            if settings.concurrency is None:
                return await generator.open_loop(load)
            return await generator.closed_loop(load, settings.concurrency, settings.duration_s)
        finally:
            await pool.close()


def _check_warmup(records: Sequence[RequestRecord]) -> None:
    if all(record.error for record in records):
        first = records[0]
        raise EngineUnavailable(f"no request of the warm-up was answered: {first.error}: {first.message}")


def _run_in_loop(work: Any) -> Run:
    try:
        import uvloop
    except ImportError:  # not built for this platform
        factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        result: Run = runner.run(work)
        return result
