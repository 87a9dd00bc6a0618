"""Elementary functions of eight f32: powers of two, exp, the gated activations, soft caps.

2^x is split at the nearest whole number, 2^x = 2^n · 2^f with |f| <= 1/2: the power of f is a polynomial of degree 6 whose
coefficients minimise the greatest relative error (2.0e-9, exact at 0), and n is added to the exponent bits. The results are
within 1.5 units in the last place where they are normal numbers. NaN goes in and out of every function.
"""

from __future__ import annotations

import math

from llvmlite import ir

from argosy.kernels.simd import F32x8, constant, define_intrinsic, emit_fma, emit_polynomial

_POWER_OF_TWO = (
    0.00015353361959569156,
    0.0013398873852565885,
    0.00961843691766262,
    0.055503323674201965,
    0.24022647738456726,
    0.6931471824645996,
    1.0,
)
_ROUNDER = 1.5 * 2.0**23  # added to a number below 2^22, it leaves the nearest integer in the low bits
_SMALLEST, _OVERFLOW = -126.0, 128.0
_LOG2_E = 1.4426950216293335  # nearest f32
_LOG2_E_REST = math.log2(math.e) - _LOG2_E
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
_I32x8 = ir.VectorType(ir.IntType(32), 8)


def _whole(b: ir.IRBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The nearest whole number as f32, and as bits whose low end is it."""
    shifted = b.fadd(x, constant(_ROUNDER))
    return b.fsub(shifted, constant(_ROUNDER)), b.bitcast(shifted, _I32x8)


def _power(b: ir.IRBuilder, x: ir.Value, fraction: ir.Value, whole_bits: ir.Value) -> ir.Value:
    """2^(whole + fraction), with `x` their sum up to rounding; 0 below the normal numbers and infinity above all."""
    mantissa = b.bitcast(emit_polynomial(b, fraction, _POWER_OF_TWO), _I32x8)
    scaled = b.bitcast(b.add(mantissa, b.shl(whole_bits, constant(23, _I32x8))), x.type)
    result = b.select(b.fcmp_unordered("<", x, constant(_SMALLEST)), constant(0.0), scaled)
    result = b.select(b.fcmp_ordered(">=", x, constant(_OVERFLOW)), constant(math.inf), result)
    return b.select(b.fcmp_unordered("uno", x, x), x, result)


def emit_exp2(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """2^x."""
    whole, bits = _whole(b, x)
    return _power(b, x, b.fsub(x, whole), bits)


def emit_exp(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """e^x."""
    scaled = b.fmul(x, constant(_LOG2_E))
    whole, bits = _whole(b, scaled)
    fraction = emit_fma(b, x, constant(_LOG2_E), b.fneg(whole))
    return _power(b, scaled, emit_fma(b, x, constant(_LOG2_E_REST), fraction), bits)


def _sigmoid_times(b: ir.IRBuilder, x: ir.Value, argument: ir.Value) -> ir.Value:
    """x / (1 + e^-argument)."""
    return b.fdiv(x, b.fadd(emit_exp(b, b.fneg(argument)), constant(1.0)))


def _silu(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return _sigmoid_times(b, x, x)


def _gelu_tanh(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """With (1 + tanh(u)) / 2 = 1 / (1 + e^-2u), u = sqrt(2/π) · (x + 0.044715 x³) (Hendrycks and Gimpel 2016)."""
    cubic = emit_fma(b, b.fmul(x, x), constant(2 * _SQRT_2_OVER_PI * 0.044715), constant(2 * _SQRT_2_OVER_PI))
    return _sigmoid_times(b, x, b.fmul(x, cubic))


def _softcap(b: ir.IRBuilder, x: ir.Value, cap: ir.Value) -> ir.Value:
    """cap · tanh(x / cap), with tanh(u) = 1 - 2 / (1 + e^2u)."""
    doubled = b.fmul(b.fdiv(x, cap), constant(2.0))
    ratio = b.fdiv(constant(2.0), b.fadd(emit_exp(b, doubled), constant(1.0)))
    return b.fmul(cap, b.fsub(constant(1.0), ratio))


exp2 = define_intrinsic(F32x8(F32x8), emit_exp2, "2^x.")
exp = define_intrinsic(F32x8(F32x8), emit_exp, "e^x.")
silu = define_intrinsic(F32x8(F32x8), _silu, "x / (1 + e^-x).")
gelu_tanh = define_intrinsic(F32x8(F32x8), _gelu_tanh, "GELU in its tanh form.")
softcap = define_intrinsic(F32x8(F32x8, F32x8), _softcap, "cap · tanh(x / cap); cap in every lane.")
