"""What tiles of all kinds need to know of an instruction set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from argosy.kernels.features import Isa
from argosy.kernels.ir import F16, F32, I8, I16, I64, Emitter, Value, const, vector
from argosy.kernels.packed import PANEL_ROWS


@dataclass(frozen=True, slots=True)
class Lowering:
    """Vectors of one instruction set.

    Attributes:
        rows: floats of a vector; a panel takes `parts` vectors.
        converts_halves: f16 to f32 is an instruction.
        fuses: x * y + z is an instruction that rounds once.
    """

    rows: int
    converts_halves: bool
    fuses: bool

    @property
    def parts(self) -> int:
        """Vectors that a panel's rows take."""
        return PANEL_ROWS // self.rows

    def multiply_add(self, e: Emitter, x: Value, y: Value, z: Value) -> Value:
        """x * y + z."""
        return e.fma(x, y, z) if self.fuses else e.mul_add(x, y, z)

    def halves(self, e: Emitter, base: Value, offset: int, part: int) -> Value:
        """One f16 per row, stored row after row at `base` + `offset`, as f32: those of `part`."""
        offset += 2 * self.rows * part
        if self.converts_halves:
            return e.b.fpext(e.load(vector(F16, self.rows), base, offset), vector(F32, self.rows))
        return e.half_to_float(e.load(vector(I16, self.rows), base, offset))

    def run(self, e: Emitter, base: Value, offset: int, part: int) -> Value:
        """Four bytes per row, stored row after row at `base` + `offset`: those of `part`."""
        return e.load(vector(I8, 4 * self.rows), base, offset + 4 * self.rows * part)

    def token_floats(self, e: Emitter, base: Value, stride: Value, group: Value, num_tokens: int) -> list[Value]:
        """The float of each token for column group `group`, in every lane; `stride` in bytes from token to token."""
        offset = e.b.mul(group, const(I64, 4))
        rows = [e.b.add(offset, e.b.mul(stride, const(I64, token))) for token in range(num_tokens)]
        return [e.splat(e.load(F32, base, row, align=4), self.rows) for row in rows]

    def to_floats(self, e: Emitter, words: Value) -> Value:
        """i32 as f32, rounded."""
        return e.b.sitofp(words, vector(F32, self.rows))

    def zeros(self, count: int) -> list[Value]:
        """`count` vectors of zeros."""
        return [const(vector(F32, self.rows), 0.0)] * count


LOWERINGS: Mapping[Isa, Lowering] = MappingProxyType(
    {
        Isa.GENERIC: Lowering(rows=16, converts_halves=False, fuses=False),
        Isa.AVX2: Lowering(rows=8, converts_halves=True, fuses=True),
        Isa.AVX512_VNNI: Lowering(rows=16, converts_halves=True, fuses=True),
    }
)
