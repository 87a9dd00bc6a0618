"""Perplexity and divergence of ways to compute a model, against float32 on the same dequantised weights.

    python benchmarks/perplexity.py smollm2-135m --paths torch:bfloat16 engine
    python benchmarks/perplexity.py smollm2-135m --paths engine:dtype=bfloat16 --tokens 4096

A path is `torch:DTYPE` (the decoder on whole sequences) or `engine[:SETTING=VALUE,…]` (what `argosy serve` runs, with
settings of `EngineArgs`). Two texts of --tokens each in windows of --window tokens, --stride apart; each token is scored
once, in the first window that holds it, so that all but the first window's have at least window - stride tokens before
them.
Writes benchmarks/results/perplexity_MODEL.json.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from argosy import LLM
from argosy.models.cache import default_cache_dir
from argosy.models.checkpoint import Checkpoint, load_config
from argosy.models.loaded import Tokenizer
from argosy.models.loader import load_decoder, load_tokenizer
from perplexity_scorers import DecoderScorer, EngineScorer, ExecutorScorer, Scorer
from perplexity_texts import SOURCES, load_text
from report import machine, write_result

CHARACTERS_PER_TOKEN = 8
REPORT_EVERY_S = 20.0


@dataclass(slots=True)
class Sums:
    """Over the scored tokens of a text; mutated window by window."""

    tokens: int = 0
    negative_logprob: float = 0.0
    kl: float = 0.0
    agreeing: int = 0

    def add(self, logprobs: Tensor, kl: Tensor, agrees: Tensor) -> None:
        """One window's part."""
        self.tokens += len(logprobs)
        self.negative_logprob -= float(logprobs.sum())
        self.kl += float(kl.sum())
        self.agreeing += int(agrees.sum())

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log probability."""
        return math.exp(self.negative_logprob / self.tokens)


@dataclass(slots=True)
class Progress:
    """Prints now and then how far it is."""

    total: int
    begin_s: float = field(default_factory=time.monotonic)
    last_s: float = -math.inf

    def tell(self, text: str, done: int) -> None:
        now_s = time.monotonic()
        if done == self.total or now_s - self.last_s >= REPORT_EVERY_S:
            self.last_s = now_s
            print(f"[{now_s - self.begin_s:6.0f} s] {text}: window {done} of {self.total}", file=sys.stderr, flush=True)


def windows(tokens: list[int], window: int, stride: int) -> Iterator[tuple[list[int], int]]:
    """Windows and how many of their leading tokens were scored before (in the first one: the first token, which cannot be).

    window 0  |-··········|           scored: ·
    window 1       |------·····|
    window 2            |------·····|
    """
    for first in range(0, max(1, len(tokens) - window + stride), stride):
        part = tokens[first : first + window]
        seen = 1 if first == 0 else window - stride
        if len(part) > seen:
            yield part, seen


def measure(
    name: str, tokens: list[int], bos: list[int], window: int, stride: int, reference: DecoderScorer, paths: list[Scorer]
) -> dict[str, Sums]:
    """Sums of the reference and of each path over one text."""
    sums = {scorer.name: Sums() for scorer in (reference, *paths)}
    parts = list(windows(tokens, window - len(bos), stride))
    progress = Progress(len(parts))
    for done, (part, seen) in enumerate(parts, 1):
        ids = bos + part
        wanted = slice(max(len(bos) + seen, 1) - 1, None)  # the first of all tokens follows nothing
        table = reference.log_probabilities(ids)
        base = table[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].double()
        likeliest = table[:-1].argmax(dim=-1)
        zeros = torch.zeros_like(base)
        sums[reference.name].add(base[wanted], zeros[wanted], torch.ones_like(likeliest)[wanted])
        for path in paths:
            scored = path.score(ids, table)
            agrees = scored.largest == likeliest
            sums[path.name].add(scored.logprobs[wanted], scored.kl[wanted], agrees[wanted])
        progress.tell(name, done)
    return sums


def make_path(text: str, model: str, checkpoint: Checkpoint, window: int, threads: int) -> Scorer:
    """The scorer that a path names. Exits with a line for one that is none."""
    kind, _, rest = text.partition(":")
    if kind == "torch" and rest in ("float32", "bfloat16", "float16"):
        return DecoderScorer(text, load_decoder(checkpoint, dtype=getattr(torch, rest), max_positions=window))
    if kind != "engine":
        sys.exit(f"error: {text!r} is no path; write torch:DTYPE, engine, or engine:SETTING=VALUE,…")
    settings: dict[str, Any] = dict(pair.split("=", 1) for pair in rest.split(",")) if rest else {}
    llm = LLM(
        model,
        max_model_len=window + 1,
        max_num_seqs=1,
        threads=threads,
        enable_prefix_caching=False,
        **{name: int(value) if value.isdigit() else value for name, value in settings.items()},
    )
    executor = llm._parts.step_loop._executor  # nothing public leads to whole rows of logits
    return ExecutorScorer(text, llm, executor) if hasattr(executor, "score") else EngineScorer(text, llm)


def text_tokens(tokenizer: Tokenizer, text: str, count: int) -> list[int]:
    """The first `count` tokens. Exits with a line if the text has fewer."""
    tokens = tokenizer.encode(text[: CHARACTERS_PER_TOKEN * count], add_special_tokens=False)[:count]
    if len(tokens) < count:
        sys.exit(f"error: the text has {len(tokens)} tokens, --tokens asks for {count}")
    return tokens


def rows_of(sums: dict[str, Sums], paths: list[Scorer], reference: str) -> dict[str, dict[str, Any]]:
    """Figures of each path for JSON."""
    base = sums[reference].perplexity
    rows: dict[str, dict[str, Any]] = {reference: {"perplexity": base}}
    for path in paths:
        own = sums[path.name]
        rows[path.name] = {
            "perplexity": own.perplexity,
            "relative_difference": own.perplexity / base - 1.0,
            "mean_kl_nats": own.kl / own.tokens,
            "kl": path.kl_kind,
            "top1_agreement": own.agreeing / own.tokens,
        }
    return rows


def main() -> None:
    options = parse()
    checkpoint = load_config(options.model)
    tokenizer = load_tokenizer(checkpoint)
    bos = tokenizer.encode("")
    cache = options.cache or default_cache_dir() / "benchmarks"
    decoder = load_decoder(checkpoint, dtype=torch.float32, max_positions=options.window)
    reference = DecoderScorer("reference", decoder)
    paths = [make_path(p, options.model, checkpoint, options.window, options.threads) for p in options.paths]
    console = Console()
    # Building an engine may set the number for the whole process.
    torch.set_num_threads(options.threads)
    texts = {}
    try:
        for source in SOURCES:
            tokens = text_tokens(tokenizer, load_text(source, cache), options.tokens)
            sums = measure(source.name, tokens, bos, options.window, options.stride, reference, paths)
            texts[source.name] = {"tokens_scored": sums[reference.name].tokens}
            texts[source.name]["paths"] = rows_of(sums, paths, reference.name)
            console.print(table_of(source.name, texts[source.name]["paths"]))
    finally:
        for path in paths:
            path.close()
    figures = {"model": options.model, "window": options.window, "stride": options.stride, "texts": texts}
    slug = re.sub(
        r"[^a-z0-9.]+", "-", Path(options.model).stem.lower() if options.model.endswith(".gguf") else options.model
    )
    print(f"wrote {write_result(f'perplexity_{slug}', figures)} on {machine()['cpu']}")


def table_of(title: str, rows: dict[str, dict[str, Any]]) -> Table:
    """The figures of one text."""
    table = Table("path", "perplexity", "difference", "mean KL, nats", "top-1", title=title)
    formats = {"relative_difference": "+.3%", "mean_kl_nats": ".6f", "top1_agreement": ".2%"}
    for name, row in rows.items():
        table.add_row(name, f"{row['perplexity']:.4f}", *(f"{row[k]:{f}}" if k in row else "" for k, f in formats.items()))
    return table


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--paths", nargs="+", default=["torch:bfloat16", "engine"])
    parser.add_argument("--tokens", type=int, default=51_200, help="of each text")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--stride", type=int, default=512)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cache", type=Path, help="where the texts are kept; default: Argosy's cache")
    options = parser.parse_args()
    if not 16 <= options.stride <= options.window or options.tokens < options.window:
        parser.error("16 <= --stride <= --window <= --tokens must hold")
    return options


if __name__ == "__main__":
    main()
