"""LLVM instructions for the nodes of a flat program, on SIMD vectors with one replica in each lane.

A loop continues until no lane has another round to make. Integers of 32 bits lie in lanes of 64, with arbitrary upper halves
until an operation depends on these: a product of two such integers is then one instruction, and nothing is packed or unpacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.ir as ir

from sgdlimits.kernel.compiler.program import COMPARISON_OPERATIONS, Program

BIT_TYPE, INT32_TYPE, INT64_TYPE, FLOAT32_TYPE, FLOAT64_TYPE = (
    ir.IntType(1),
    ir.IntType(32),
    ir.IntType(64),
    ir.FloatType(),
    ir.DoubleType(),
)
SCALAR_TYPES = {
    "f64": FLOAT64_TYPE,
    "f32": FLOAT32_TYPE,
    "b1": BIT_TYPE,
    **dict.fromkeys(("i64", "u64", "i32", "u32"), INT64_TYPE),
}
LOW_32_BITS = 2**32 - 1
FAST_MATH_FLAGS = ("contract", "nsz")
"""Flags of LLVM's floating-point instructions; they allow a product and a sum to be fused into one instruction, with one
rounding."""
COMPARISON_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
RARE_BRANCH_WEIGHTS = (1, 2000)
"""Relative frequencies of the two sides of a branch that is rarely taken, for LLVM's block layout."""


class VectorInstructions:
    """Writer of instructions for a program's nodes on SIMD vectors, with one replica per lane."""

    def __init__(self, module: ir.Module, builder: ir.IRBuilder, width: int, wide: bool) -> None:
        self.module, self.b, self.width, self.wide = module, builder, width, wide

    def llvm_type(self, kind: str) -> ir.Type:
        """Return the LLVM vector type for a scalar type of the program, such as "f64"."""
        return ir.VectorType(SCALAR_TYPES[kind], self.width)

    def const(self, value: Any, kind: str) -> ir.Constant:
        """Return an LLVM constant with the same value in all lanes."""
        if kind[0] != "f":  # LLVM takes integers in the signed range
            value = int(value) if kind == "b1" else (int(value) + 2**63) % 2**64 - 2**63
        return ir.Constant(self.llvm_type(kind), [value] * self.width)

    def emit_splat(self, number: ir.Value) -> ir.Value:
        """Emit a vector with copies of a scalar in all lanes."""
        kind = ir.VectorType(number.type, self.width)
        one = self.b.insert_element(ir.Constant(kind, ir.Undefined), number, INT32_TYPE(0))
        return self.b.shuffle_vector(
            one, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(INT32_TYPE, self.width), None)
        )

    def emit_low_word(self, number: ir.Value) -> ir.Value:
        """Return a 64-bit integer as a 32-bit one, whose lane of 64 bits may have any upper half."""
        return number

    def emit_any_lane(self, lanes: ir.Value) -> ir.Value:
        """Emit the test whether any lane of a mask is true."""
        bits = ir.IntType(self.width)
        return self.b.icmp_unsigned("!=", self.b.bitcast(lanes, bits), bits(0))

    def allocate_variable(self, type_: ir.Type) -> ir.Value:
        """Allocate a variable of an LLVM type in the entry block, from where LLVM moves it into a register."""
        with self.b.goto_entry_block():
            return self.b.alloca(type_)

    def intrinsic(self, name: str, *args: ir.Value) -> ir.Value:
        """Emit the call of an LLVM intrinsic on floats, such as "sqrt"."""
        element = "f64" if args[0].type.element == FLOAT64_TYPE else "f32"
        kind = ir.FunctionType(args[0].type, [arg.type for arg in args])
        name = f"llvm.{name}.v{self.width}{element}"
        known = self.module.globals.get(name)
        return self.b.call(known or ir.Function(self.module, kind, name), args)

    def clear_upper_half(self, x: ir.Value, kind: str) -> ir.Value:
        """Emit the extension of a 32-bit integer to its lane of 64 bits: zeros if unsigned, copies of the sign if signed."""
        if kind == "u32":
            return self.b.and_(x, self.const(LOW_32_BITS, "u64"))
        half = self.const(32, "i64")
        return self.b.ashr(self.b.shl(x, half), half) if kind == "i32" else x

    def emit(self, program: Program, places: Sequence[int], known: dict[int, ir.Value]) -> None:
        """Emit the instructions of the nodes with indices `places`, and add their LLVM values to `known`."""
        for place in places:
            node = program.nodes[place]
            if place in known:
                continue
            if node.op == "const":
                known[place] = self.const(node.data, node.kind)
            elif node.op == "loop":
                known[place] = self._emit_loop(program, place, known)
            elif node.op == "item":
                known[place] = known[node.args[0]][node.data]
            elif node.op == "input":
                raise KeyError(f"input {node.data} has no value")
            else:
                kinds = [program.kind(arg) for arg in node.args]
                known[place] = self._op(node.op, node.kind, kinds, [known[arg] for arg in node.args])

    def _emit_loop(self, program: Program, place: int, known: dict[int, ir.Value]) -> list[ir.Value]:
        """Emit a `while` loop of the program; lanes that have finished keep their values while others continue.

        The loop is skipped if no lane enters it, which is marked as the likely case.
        """
        b, node = self.b, program.nodes[place]
        loop, (begin, *first) = node.data, [known[arg] for arg in node.args]
        slots = [self.allocate_variable(value.type) for value in first]
        active = self.allocate_variable(begin.type)
        for slot, value in zip((*slots, active), (*first, begin), strict=True):
            b.store(value, slot)
        enter, rounds, leave = (b.append_basic_block(name) for name in ("enter", "round", "leave"))
        b.cbranch(self.emit_any_lane(begin), enter, leave).set_weights(RARE_BRANCH_WEIGHTS)
        b.position_at_end(enter)
        still, body = program.split_loop(loop, known)  # loop-invariant values are computed once, before the first round
        inner = dict(known)
        self.emit(program, still, inner)
        b.branch(rounds)
        b.position_at_end(rounds)
        on = b.load(active)
        inner |= {carry: b.load(slot) for carry, slot in zip(loop.carry, slots, strict=True)}
        self.emit(program, body, inner)
        for carry, after, slot in zip(loop.carry, loop.next_values, slots, strict=True):
            b.store(b.select(on, inner[after], inner[carry]), slot)
        on = b.and_(on, inner[loop.continue_index])
        b.store(on, active)
        b.cbranch(self.emit_any_lane(on), rounds, leave)
        b.position_at_end(leave)
        return [b.load(slot) for slot in slots]

    def _op(self, op: str, kind: str, kinds: list[str], args: list[ir.Value]) -> ir.Value:
        """Emit one operation of the program, with arguments of the scalar types `kinds` and a result of type `kind`."""
        b, of = self.b, kinds[-1]
        real, signed = of[0] == "f", of[0] == "i"
        # These operations depend on the upper halves of 32-bit integers; sums, differences and bitwise ones do not.
        if op in ("shr", "div", "rem", *(["mul"] if of == "u32" else []), "max", "min", "abs", "sign", *COMPARISON_OPERATIONS):
            args = [self.clear_upper_half(arg, of) for arg in args]
        if op in ("add", "sub", "mul"):
            return getattr(b, f"f{op}")(*args, flags=FAST_MATH_FLAGS) if real else getattr(b, op)(*args)
        if op == "div":
            return b.fdiv(*args, flags=FAST_MATH_FLAGS) if real else (b.sdiv if signed else b.udiv)(*args)
        if op == "rem":
            return b.frem(*args) if real else (b.srem if signed else b.urem)(*args)
        if op in ("and", "or", "xor"):
            return {"and": b.and_, "or": b.or_, "xor": b.xor}[op](*args)
        if op == "shl":
            return b.shl(*args)
        if op == "shr":
            return (b.ashr if signed else b.lshr)(*args)
        if op == "not":
            return b.not_(args[0])
        if op == "neg":
            return b.fneg(args[0]) if real else b.neg(args[0])
        if op == "select":
            return b.select(*args)
        if op in COMPARISON_OPERATIONS:
            return self._compare(op, of, *args)
        if op in ("max", "min"):
            return b.select(self._compare("gt" if op == "max" else "lt", of, *args), *args)
        if op == "abs":
            return (
                self.intrinsic("fabs", *args)
                if real
                else b.select(self._compare("lt", of, args[0], self.const(0, of)), b.neg(args[0]), args[0])
            )
        if op == "sign":
            zero = self.const(0, of)
            below = b.select(self._compare("lt", of, args[0], zero), self.const(-1, of), zero)
            return b.select(self._compare("gt", of, args[0], zero), self.const(1, of), below)
        if op == "rsqrt":
            return self._rsqrt(*args)
        if op in ("sqrt", "floor", "ceil", "round"):
            return self.intrinsic({"round": "rint"}.get(op, op), *args)
        if op == "bitcast":
            return self._bitcast(of, kind, args[0])
        if op == "convert":
            return self._convert(of, kind, args[0])
        raise KeyError(op)

    def _rsqrt(self, x: ir.Value) -> ir.Value:
        """Emit 1/sqrt(x); AVX-512 has an estimate, which two Newton steps refine without division or square root."""
        b = self.b
        if not self.wide or x.type.element != FLOAT64_TYPE:
            return b.fdiv(ir.Constant(x.type, [1.0] * self.width), self.intrinsic("sqrt", x), flags=FAST_MATH_FLAGS)
        # The estimate has 14 bits; each Newton step doubles them.
        eight, name = ir.VectorType(FLOAT64_TYPE, 8), "llvm.x86.avx512.rsqrt14.pd.512"
        kind = ir.FunctionType(eight, [eight, eight, ir.IntType(8)])
        function = self.module.globals.get(name) or ir.Function(self.module, kind, name)
        lanes = lambda first, count: ir.Constant(ir.VectorType(INT32_TYPE, count), list(range(first, first + count)))
        nothing = ir.Constant(eight, ir.Undefined)
        parts = [b.shuffle_vector(x, x, lanes(first, 8)) for first in range(0, self.width, 8)]
        parts = [b.call(function, [part, nothing, ir.IntType(8)(-1)]) for part in parts]
        first = parts[0] if len(parts) == 1 else b.shuffle_vector(*parts, lanes(0, 16))
        half, y = b.fmul(x, self.const(-0.5, "f64"), flags=FAST_MATH_FLAGS), first
        for _ in range(2):
            rest = b.fadd(b.fmul(b.fmul(half, y), y, flags=FAST_MATH_FLAGS), self.const(0.5, "f64"), flags=FAST_MATH_FLAGS)
            y = b.fadd(b.fmul(y, rest, flags=FAST_MATH_FLAGS), y, flags=FAST_MATH_FLAGS)
        return b.select(b.fcmp_ordered("==", y, y), y, first)  # at zero and at infinity the estimate is exact

    def _compare(self, op: str, of: str, x: ir.Value, y: ir.Value) -> ir.Value:
        """Emit the comparison of two values of the scalar type `of`; with NaN only `ne` is true."""
        b = self.b
        if of[0] == "f":
            return (b.fcmp_unordered if op == "ne" else b.fcmp_ordered)(COMPARISON_SIGNS[op], x, y)
        return (b.icmp_signed if of[0] == "i" else b.icmp_unsigned)(COMPARISON_SIGNS[op], x, y)

    def _bitcast(self, of: str, kind: str, x: ir.Value) -> ir.Value:
        """Emit the reinterpretation of the bits of a value of the scalar type `of`.

        Floats of 32 bits are packed, integers of 32 bits are in lanes of 64.
        """
        b, narrow = self.b, ir.VectorType(INT32_TYPE, self.width)
        if "f32" not in (of, kind):
            return b.bitcast(x, self.llvm_type(kind))
        return (
            b.zext(b.bitcast(x, narrow), self.llvm_type(kind))
            if of == "f32"
            else b.bitcast(b.trunc(x, narrow), self.llvm_type(kind))
        )

    def _convert(self, of: str, kind: str, x: ir.Value) -> ir.Value:
        """Emit the conversion of a value from the scalar type `of` to `kind`."""
        b, to, narrow = self.b, self.llvm_type(kind), ir.VectorType(INT32_TYPE, self.width)
        if kind == "b1":
            return self._compare("ne", of, self.clear_upper_half(x, of), self.const(0, of))
        if of == "b1":
            return b.select(x, self.const(1, kind), self.const(0, kind))
        if of[0] == kind[0] == "f":
            return b.fpext(x, to) if kind == "f64" else b.fptrunc(x, to)
        if of[0] == "f":
            if kind in ("i32", "u32"):
                return b.sext(b.fptosi(x, narrow), to) if kind == "i32" else b.fptosi(x, to)
            return b.fptosi(x, to) if kind == "i64" else b.fptoui(x, to)
        if kind[0] != "f":
            return self.clear_upper_half(x, of)
        if of == "i32":
            return b.sitofp(b.trunc(x, narrow), to)
        if of == "u32" and not self.wide and kind == "f64":
            # Without AVX-512 there is no such instruction: the integer becomes the mantissa of 2^52, which is then subtracted.
            bits = b.or_(self.clear_upper_half(x, of), self.const(0x433 << 52, "u64"))
            return b.fsub(b.bitcast(bits, to), self.const(2.0**52, "f64"))
        return (b.sitofp if of[0] == "i" else b.uitofp)(self.clear_upper_half(x, of), to)
