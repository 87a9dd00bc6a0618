"""Offline throughput of `argosy.LLM` against `transformers` batch generate: same weights, same machine, same run.

Both generate the same number of tokens greedily from the same prompts in float32; rounds alternate, the ratio of medians is
reported. usage: python benchmarks/offline_vs_transformers.py [--sequences 32] [--tokens 64] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from argosy import LLM, SamplingParams
from argosy.models.checkpoint import load_config
from argosy.models.loader import checkpoint_weights
from report import machine, write_result

TOPICS = ["the sea", "a lighthouse", "bread", "the number seven", "winter", "a small dog", "trade winds", "maps"]


def prompts(count: int) -> list[str]:
    """`count` prompts of different lengths, about 10 to 60 tokens."""
    return [f"Tell me about {TOPICS[i % 8]}. " + "Be brief and clear. " * (i % 9) for i in range(count)]


def argosy_runner(threads: int, batch: list[list[int]], new_tokens: int) -> Callable[[], int]:
    """A function that generates once and returns the number of tokens made."""
    llm = LLM("smollm2-135m", dtype="float32", threads=threads, enable_prefix_caching=False, max_num_seqs=len(batch))
    params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)

    def run() -> int:
        return sum(len(c.token_ids) for out in llm.generate(batch, params) for c in out.completions)

    return run


def same_weights_in_transformers() -> LlamaForCausalLM:
    """transformers' Llama with the weights our engine runs, dequantised to float32, and its default attention."""
    checkpoint = load_config("smollm2-135m")
    ours = checkpoint.config
    config = LlamaConfig(
        vocab_size=ours.vocab_size,
        hidden_size=ours.hidden_size,
        intermediate_size=ours.intermediate_size,
        num_hidden_layers=ours.num_layers,
        num_attention_heads=ours.num_heads,
        num_key_value_heads=ours.num_kv_heads,
        head_dim=ours.head_dim,
        max_position_embeddings=ours.max_positions,
        rms_norm_eps=ours.norm_eps,
        tie_word_embeddings=ours.tie_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": ours.rope.theta},
    )
    model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(dict(checkpoint_weights(checkpoint)), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    return model.eval()


def transformers_runner(batch: list[list[int]], new_tokens: int) -> Callable[[], int]:
    """The same through `model.generate` on one left-padded batch."""
    model = same_weights_in_transformers()
    longest = max(map(len, batch))
    ids = torch.tensor([[2] * (longest - len(p)) + p for p in batch])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in batch])

    @torch.inference_mode()
    def run() -> int:
        out = model.generate(
            ids, attention_mask=mask, do_sample=False, min_new_tokens=new_tokens, max_new_tokens=new_tokens, pad_token_id=2
        )
        return (out.shape[1] - longest) * len(batch)

    return run


def alternate(runners: dict[str, Callable[[], int]], rounds: int) -> dict[str, list[float]]:
    """Tokens per second of each runner in each round. A first round, not counted, warms caches and allocators."""
    rates: dict[str, list[float]] = {name: [] for name in runners}
    for round_index in range(rounds + 1):
        for name, run in runners.items():
            begin = time.perf_counter()
            made = run()
            if round_index > 0:
                rates[name].append(made / (time.perf_counter() - begin))
    return rates


def main() -> None:
    """Measure, print a table, write benchmarks/results/offline_vs_transformers.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = Table("sequences", "argosy tok/s", "transformers tok/s", "ratio", title="offline, greedy, float32")
    rows = []
    for count in options.sequences:
        with LLM("smollm2-135m", threads=options.threads) as llm:
            batch = [llm.tokenizer.encode(p) for p in prompts(count)]
        rates = alternate(
            {
                "argosy": argosy_runner(options.threads, batch, options.tokens),
                "transformers": transformers_runner(batch, options.tokens),
            },
            options.rounds,
        )
        ours, theirs = (statistics.median(rates[name]) for name in ("argosy", "transformers"))
        # Neighbours come and go: rounds side by side are compared with each other, then the median is taken.
        ratio = statistics.median(a / b for a, b in zip(*rates.values(), strict=True))
        rows.append(
            {
                "sequences": count,
                "argosy_tokens_per_s": ours,
                "transformers_tokens_per_s": theirs,
                "ratio": ratio,
                "rounds": rates,
            }
        )
        table.add_row(str(count), f"{ours:.1f}", f"{theirs:.1f}", f"{ratio:.2f}")
    console = Console()
    console.print(table)
    figures = {"new_tokens": options.tokens, "threads": options.threads, "rows": rows}
    console.print(f"wrote {write_result('offline_vs_transformers', figures)} on {machine()['cpu']}")


if __name__ == "__main__":
    main()
