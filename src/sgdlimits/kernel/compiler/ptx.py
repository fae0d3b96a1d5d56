"""Back end for NVIDIA GPUs: the function of `sgdlimits.kernel.compiler.llvm` with one thread for each replica, as PTX.

Threads of a warp take the place of lanes of a vector: arrays have the same layout, for vectors of 32 replicas, so that threads
of a warp access consecutive addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import llvmlite
import llvmlite.binding as llvm
import llvmlite.ir as ir

from sgdlimits.kernel.compiler.llvm import FUNCTION_NAME, FunctionWriter
from sgdlimits.kernel.compiler.replica import Replica
from sgdlimits.kernel.compiler.scalars import ScalarInstructions
from sgdlimits.kernel.compiler.vectors import FAST_MATH_FLAGS, FLOAT32_TYPE, FLOAT64_TYPE, INT32_TYPE, INT64_TYPE

TARGET_TRIPLE = "nvptx64-nvidia-cuda"
WARP_SIZE = 32
MIN_ROOT_ARGUMENT = 1e-290
"""Constant that is added to the argument of a square root, so that the inverse root of zero is finite."""


class GpuTarget:
    """NVIDIA GPU as a target of LLVM, given by its compute capability, such as "90"."""

    def __init__(self, capability: str) -> None:
        self.name, self.triple = f"sm_{capability}", TARGET_TRIPLE
        self.key = (llvmlite.__version__, llvm.llvm_version_info, self.name)

    def compile_ptx(self, text: str) -> str:
        """Compile the LLVM text of a module to PTX."""
        _initialise_llvm()
        module = llvm.parse_assembly(text)
        target = llvm.Target.from_triple(TARGET_TRIPLE).create_target_machine(self.name, opt=3)
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_unrolling = False  # the body of the loop over steps is long already
        passes = llvm.create_pass_builder(target, options)
        passes.getModulePassManager().run(module, passes)
        return target.emit_assembly(module)


@lru_cache(maxsize=1)
def _initialise_llvm() -> None:
    """Initialise LLVM's code generators for all targets, once in a process."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def write_llvm(replica: Replica, gpu: GpuTarget, limit: float) -> str:
    """Return the LLVM text of the GPU kernel `advance`, which makes the steps of a replica's flat program.

    Its arguments are those of the function for CPUs.
    """
    return str(GpuWriter(replica, gpu, limit).module)


class GpuWriter(FunctionWriter):
    """Writer of the GPU kernel that makes all steps of a call; each thread computes one replica after another."""

    def begin_function(self, name: str, argument_count: int) -> None:
        super().begin_function(name, argument_count)
        if name == FUNCTION_NAME:
            self.function.calling_convention = "ptx_kernel"

    def new_instructions(self) -> GpuInstructions:
        return GpuInstructions(self.module, self.b)

    def coordinate_pointers(self, pointer: ir.Value, kind: str, index: ir.Value, count: int) -> list[ir.Value]:
        b = self.b
        # Replica i is lane i mod 32 of vector i div 32.
        lane = b.add(
            b.mul(b.udiv(index, INT64_TYPE(WARP_SIZE)), INT64_TYPE(count * WARP_SIZE)), b.urem(index, INT64_TYPE(WARP_SIZE))
        )
        return self.row_pointers(b.bitcast(self.address(pointer, lane), self.v.llvm_type(kind).as_pointer()), count)

    def row_pointers(self, base: ir.Value, count: int) -> list[ir.Value]:
        return [self.address(base, WARP_SIZE * i) for i in range(count)]

    @contextmanager
    def loop_over_replicas(self, vectors: ir.Value) -> Iterator[ir.Value]:
        b, index = self.b, self.v.allocate_variable(INT64_TYPE)
        block, size, thread, blocks = (
            b.zext(self.read_register(name), INT64_TYPE) for name in ("ctaid", "ntid", "tid", "nctaid")
        )
        b.store(b.add(b.mul(block, size), thread), index)
        again, body, leave = (b.append_basic_block(name) for name in ("replicas", "replica", "leave"))
        b.branch(again)
        b.position_at_end(again)
        here = b.load(index)
        b.cbranch(b.icmp_signed("<", here, b.mul(vectors, INT64_TYPE(WARP_SIZE))), body, leave)
        b.position_at_end(body)
        yield here
        # A grid-stride loop: the next replica of a thread is one grid further.
        b.store(b.add(here, b.mul(size, blocks)), index)
        b.branch(again)
        b.position_at_end(leave)

    def read_register(self, name: str) -> ir.Value:
        """Emit the read of a special register: index or number of threads ("tid", "ntid") or of blocks ("ctaid", "nctaid")."""
        name = f"llvm.nvvm.read.ptx.sreg.{name}.x"
        known = self.module.globals.get(name)
        return self.b.call(known or ir.Function(self.module, ir.FunctionType(INT32_TYPE, []), name), [])


class GpuInstructions(ScalarInstructions):
    """Writer of GPU instructions for a program's nodes, with divisions and square roots of its own.

    The device has estimates of reciprocals and of inverse square roots, of 20 bits. One step of third order makes them accurate
    to rounding, without the branches of the device's division. At zero and infinity the estimate is the result.
    """

    def _op(self, op: str, kind: str, kinds: list[str], args: list[ir.Value]) -> ir.Value:
        if op == "div" and kind == "f64":
            return self._quotient(*args)
        if op == "sqrt":
            return self._square_root(*args) if kind == "f64" else self._estimate("sqrt", *args)
        return super()._op(op, kind, kinds, args)

    def _estimate(self, name: str, x: ir.Value) -> ir.Value:
        """Emit an approximate instruction of the GPU: "rcp" for 1/x, "rsqrt" or "sqrt"."""
        name = f"llvm.nvvm.{name}.approx.ftz.{'d' if x.type == FLOAT64_TYPE else 'f'}"
        known = self.module.globals.get(name)
        return self.b.call(known or ir.Function(self.module, ir.FunctionType(x.type, [x.type]), name), [x])

    def _quotient(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """Emit x/y: with an estimate r of 1/y and its error e = 1 - y r, the reciprocal is r + r (e + e^2)."""
        first = self._estimate("rcp", y)
        wrong = self._limit_error(self._fma(self.b.fneg(y), first, 1.0))
        return self._emit_product(x, self._fma(first, self._fma(wrong, wrong, wrong), first))

    def _rsqrt(self, x: ir.Value) -> ir.Value:
        """Emit 1/sqrt(x): with an estimate r and its error e = 1 - x r^2, the inverse root is r + r e (1/2 + 3/8 e)."""
        if x.type != FLOAT64_TYPE:
            return super()._rsqrt(x)
        first = self._estimate("rsqrt", x)
        wrong = self._limit_error(self._fma(self.b.fneg(x), self._emit_product(first, first), 1.0))
        return self._fma(self._emit_product(first, wrong), self._fma(wrong, 0.375, 0.5), first)

    def _square_root(self, x: ir.Value) -> ir.Value:
        """Emit sqrt(x) as x/sqrt(x) with one Newton step; a tiny shift keeps the inverse root finite at x = 0."""
        inverse = self._rsqrt(self.b.fadd(x, self._as_constant(MIN_ROOT_ARGUMENT)))
        rough = self._emit_product(x, inverse)
        return self._fma(self._fma(self.b.fneg(rough), rough, x), self._emit_product(inverse, 0.5), rough)

    def _limit_error(self, wrong: ir.Value) -> ir.Value:
        """Emit the replacement of an error that is NaN, for estimates at zero or infinity, by a finite number.

        The result is then the estimate itself. A single instruction suffices: the minimum of 1 and the upper half of the bits
        as a float. All other errors, which are below 2^-7, are unchanged.
        """
        b = self.b
        bits = b.bitcast(wrong, INT64_TYPE)
        upper = b.bitcast(b.trunc(b.lshr(bits, INT64_TYPE(32)), INT32_TYPE), FLOAT32_TYPE)
        least = b.zext(b.bitcast(self.intrinsic("minnum", upper, ir.Constant(FLOAT32_TYPE, 1.0)), INT32_TYPE), INT64_TYPE)
        return b.bitcast(b.or_(b.shl(least, INT64_TYPE(32)), b.and_(bits, INT64_TYPE(2**32 - 1))), FLOAT64_TYPE)

    def _as_constant(self, x: ir.Value | float) -> ir.Value:
        """Convert a float to a constant of the LLVM code; return other values unchanged."""
        return self.const(x, "f64") if isinstance(x, float) else x

    def _fma(self, *args: ir.Value | float) -> ir.Value:
        """Emit the fused product and sum x y + z, with one rounding."""
        return self.intrinsic("fma", *map(self._as_constant, args))

    def _emit_product(self, x: ir.Value, y: ir.Value | float) -> ir.Value:
        """Emit the product of two floats, as a GPU instruction."""
        return self.b.fmul(x, self._as_constant(y), flags=FAST_MATH_FLAGS)
