"""LLVM instructions for the nodes of a flat program, on scalars of one replica, for GPUs.

Integers of 32 bits have that size here, since they share no vector with doubles.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir

from sgdlimits.kernel.compiler.vectors import (
    BIT_TYPE,
    FAST_MATH_FLAGS,
    FLOAT32_TYPE,
    FLOAT64_TYPE,
    INT32_TYPE,
    INT64_TYPE,
    VectorInstructions,
)

SCALAR_TYPES = {
    "f64": FLOAT64_TYPE,
    "f32": FLOAT32_TYPE,
    "b1": BIT_TYPE,
    "i64": INT64_TYPE,
    "u64": INT64_TYPE,
    "i32": INT32_TYPE,
    "u32": INT32_TYPE,
}


class ScalarInstructions(VectorInstructions):
    """Writer of instructions for a program's nodes on scalars, with one replica per thread of a GPU."""

    def __init__(self, module: ir.Module, builder: ir.IRBuilder) -> None:
        super().__init__(module, builder, width=1, wide=False)

    def llvm_type(self, kind: str) -> ir.Type:
        return SCALAR_TYPES[kind]

    def const(self, value: Any, kind: str) -> ir.Constant:
        if kind[0] != "f":
            half = 2 ** (SCALAR_TYPES[kind].width - 1)
            value = int(value) if kind == "b1" else (int(value) + half) % (2 * half) - half
        return ir.Constant(SCALAR_TYPES[kind], value)

    def emit_splat(self, number: ir.Value) -> ir.Value:
        return number

    def emit_low_word(self, number: ir.Value) -> ir.Value:
        return self.b.trunc(number, INT32_TYPE)

    def emit_any_lane(self, lanes: ir.Value) -> ir.Value:
        return lanes

    def intrinsic(self, name: str, *args: ir.Value) -> ir.Value:
        name = f"llvm.{name}.{'f64' if args[0].type == FLOAT64_TYPE else 'f32'}"
        kind = ir.FunctionType(args[0].type, [arg.type for arg in args])
        return self.b.call(self.module.globals.get(name) or ir.Function(self.module, kind, name), args)

    def clear_upper_half(self, x: ir.Value, kind: str) -> ir.Value:
        return x

    def _rsqrt(self, x: ir.Value) -> ir.Value:
        return self.b.fdiv(ir.Constant(x.type, 1.0), self.intrinsic("sqrt", x), flags=FAST_MATH_FLAGS)

    def _bitcast(self, of: str, kind: str, x: ir.Value) -> ir.Value:
        return self.b.bitcast(x, self.llvm_type(kind))

    def _convert(self, of: str, kind: str, x: ir.Value) -> ir.Value:
        b, to = self.b, self.llvm_type(kind)
        if kind == "b1":
            return self._compare("ne", of, x, self.const(0, of))
        if of == "b1":
            return b.select(x, self.const(1, kind), self.const(0, kind))
        if of[0] == kind[0] == "f":
            return b.fpext(x, to) if kind == "f64" else b.fptrunc(x, to)
        if of[0] == "f":
            # By way of 64 bits, so that the result agrees with that of lanes for negative floats.
            return b.trunc(b.fptosi(x, INT64_TYPE), to) if kind == "u32" else (b.fptoui if kind == "u64" else b.fptosi)(x, to)
        if kind[0] == "f":
            return (b.sitofp if of[0] == "i" else b.uitofp)(x, to)
        if to.width == x.type.width:
            return x
        return b.trunc(x, to) if to.width < x.type.width else (b.sext if of[0] == "i" else b.zext)(x, to)
