"""The part of `argosy doctor` that is about the CPU kernels: what they are compiled for, and what they reach here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gguf.constants import GGMLQuantizationType

    from argosy.kernels.team import Team
    from argosy.models.checkpoint import Checkpoint

_MANY_TOKENS = 64
_DEFAULT_COLUMNS = 2048
_DEFAULT_TYPES = ("Q4_0", "Q4_K", "Q8_0", "BF16", "F32")


@dataclass(frozen=True, slots=True)
class TypeReport:
    """One type of tensor of a model: its bytes, its kernel, and what that reaches.

    `alone_share` is the part of the measured memory bandwidth with one token, `kernel` "" if there is none.
    """

    type: str
    stored_bytes: int
    kernel: str
    alone_bytes_per_s: float
    alone_share: float
    many_multiply_adds_per_s: float


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What the kernels reach on this machine.

    `read_bytes_per_token` are the weights that one sequence reads for each token, `limit_tokens_per_s` what reading them
    allows; 0 without a model.
    """

    isa: str
    cpu: str
    features: tuple[str, ...]
    num_threads: int
    read_bytes_per_s: float
    types: tuple[TypeReport, ...]
    read_bytes_per_token: int
    limit_tokens_per_s: float

    def as_json(self) -> dict[str, Any]:
        """Plain values, SI units."""
        return {
            "isa": self.isa,
            "cpu": self.cpu,
            "features": list(self.features),
            "threads": self.num_threads,
            "read_bytes_per_s": self.read_bytes_per_s,
            "read_bytes_per_token": self.read_bytes_per_token,
            "limit_tokens_per_s": self.limit_tokens_per_s,
            "types": [
                {
                    "type": t.type,
                    "stored_bytes": t.stored_bytes,
                    "kernel": t.kernel,
                    "bytes_per_s_one_token": t.alone_bytes_per_s,
                    "share_of_bandwidth": t.alone_share,
                    f"multiply_adds_per_s_{_MANY_TOKENS}_tokens": t.many_multiply_adds_per_s,
                }
                for t in self.types
            ],
        }


def report_kernels(checkpoint: Checkpoint | None, threads: int | None) -> KernelReport:
    """Measure the kernels of a model's tensor types, or of common ones; takes some seconds per type."""
    from gguf.constants import GGMLQuantizationType

    from argosy.kernels.cores import usable_cores
    from argosy.kernels.features import REQUIRED_FEATURES, choose_isa, host_features, host_target
    from argosy.kernels.measure import measure_reading
    from argosy.kernels.team import Team

    isa = choose_isa()
    wanted = sorted(frozenset().union(*REQUIRED_FEATURES.values()) & host_features())
    team = Team(usable_cores() if threads is None else threads)
    try:
        reading = measure_reading(team)
        if checkpoint is None:
            shapes = {GGMLQuantizationType[name]: (0, _DEFAULT_COLUMNS) for name in _DEFAULT_TYPES}
        else:
            shapes = _shapes(checkpoint)
        types = tuple(_report_type(t, *shape, reading, team) for t, shape in shapes.items())
    finally:
        team.close()
    read_bytes = 0 if checkpoint is None else _read_bytes_per_token(checkpoint)
    return KernelReport(
        isa=isa.value,
        cpu=host_target().cpu,
        features=tuple(wanted),
        num_threads=team.num_threads,
        read_bytes_per_s=reading,
        types=types,
        read_bytes_per_token=read_bytes,
        limit_tokens_per_s=reading / read_bytes if read_bytes else 0.0,
    )


def compile_everything() -> list[str]:
    """Compile all kernels for this processor, or find them compiled; the lines that say what was done."""
    from argosy.kernels.compile_ahead import compile_ops, compile_products
    from argosy.kernels.features import choose_isa
    from argosy.kernels.gemm.registry import TILES
    from argosy.kernels.jit import JitCompiler

    lines: list[str] = []
    compile_ops(lines.append)
    isa = choose_isa()
    compile_products(sorted(kind for kind, of in TILES if of is isa), isa, JitCompiler(), lines.append)
    return lines


def _read_bytes_per_token(checkpoint: Checkpoint) -> int:
    """All weights but embeddings that are not the output head too: of those a token reads one row."""
    tensors = checkpoint.source.tensors.values()
    embeddings = sum(t.num_bytes for t in tensors if t.name.endswith(("token_embd.weight", "embed_tokens.weight")))
    return checkpoint.weights_bytes - (0 if checkpoint.config.tie_embeddings else embeddings)


def _shapes(checkpoint: Checkpoint) -> dict[GGMLQuantizationType, tuple[int, int]]:
    """Of each type of matrix its bytes, and the width that most of these belong to; most bytes first."""
    from gguf.constants import GGML_QUANT_SIZES

    from argosy.engine.executors.cpu_support import matrix_types

    by_width: dict[GGMLQuantizationType, Counter[int]] = {}
    for name, stored_type in matrix_types(checkpoint).items():
        *rows, columns = checkpoint.source.tensors[name].shape
        block_columns, block_bytes = GGML_QUANT_SIZES[stored_type]
        num_bytes = columns // block_columns * block_bytes
        for count in rows:
            num_bytes *= count
        by_width.setdefault(stored_type, Counter())[columns] += num_bytes
    shapes = {t: (widths.total(), widths.most_common(1)[0][0]) for t, widths in by_width.items()}
    return dict(sorted(shapes.items(), key=lambda item: -item[1][0]))


def _report_type(
    stored_type: GGMLQuantizationType, stored_bytes: int, columns: int, reading: float, team: Team
) -> TypeReport:
    from argosy.kernels.features import choose_isa
    from argosy.kernels.gemm.registry import TILES
    from argosy.kernels.jit import JitCompiler
    from argosy.kernels.measure import WORKING_SET_BYTES, kind_of, measure_product

    isa, jit = choose_isa(), JitCompiler()
    kind = kind_of(stored_type)
    if kind is None or (kind, isa) not in TILES:
        return TypeReport(stored_type.name, stored_bytes, "", 0.0, 0.0, 0.0)
    alone = measure_product(stored_type, columns, 1, team=team, isa=isa, jit=jit)
    few = WORKING_SET_BYTES // _MANY_TOKENS
    many = measure_product(stored_type, columns, _MANY_TOKENS, team=team, isa=isa, jit=jit, working_set_bytes=few)
    return TypeReport(
        type=stored_type.name,
        stored_bytes=stored_bytes,
        kernel=f"{kind.value}, {isa.value}",
        alone_bytes_per_s=alone.bytes_per_s,
        alone_share=alone.bytes_per_s / reading,
        many_multiply_adds_per_s=many.multiply_adds_per_s,
    )
