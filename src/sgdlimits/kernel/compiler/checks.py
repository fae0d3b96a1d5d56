"""Emitters of code that checks a stop condition after each step: a base class, and three implementations.

A cheap condition is evaluated after each step. An expensive one is skipped while a bound proves it false: either a ball around
the last state in which it was evaluated, or a quadratic function of the state. The code of a bound is a function of its own,
which is called rarely and therefore stays out of the loop over steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.ir as ir
import numpy as np

from sgdlimits.kernel.compiler.replica import STOPS, BallCheck, BoundCheck, EveryStepCheck, Replica
from sgdlimits.kernel.compiler.vectors import FAST_MATH_FLAGS, FLOAT64_TYPE, INT64_TYPE

FunctionWriter = Any
"""Type of the writer `sgdlimits.kernel.compiler.llvm.FunctionWriter`, whose module imports this one."""
INITIAL_RADIUS = 0.01
"""Radius of the first ball in which a stop condition is known to fail; coordinates are of order 1. Later radii adapt."""
RADIUS_GROWTH, RADIUS_SHRINKAGE = 2.0, 0.25
"""Factors by which the radius of the ball changes after a ball that excluded stopping, and after one that did not."""


class StopCheckEmitter:
    """Base class of the emitters of code that checks a stop condition; without a condition it emits nothing."""

    pointers = 0
    """Number of pointer arguments of the compiled function that belong to the check of the stop condition."""

    def __init__(self, writer: FunctionWriter) -> None:
        self.writer = writer

    def emit_functions(self) -> None:
        """Emit helper functions, which the main function calls."""

    def begin(self, pointers: Sequence[ir.Value]) -> None:
        """Emit the variables of the check at the beginning of the main function, whose arguments `pointers` it receives."""

    def begin_vector(self, index: ir.Value) -> None:
        """Emit the preparation of the check for the vector of replicas with this index."""

    def emit_check_after_step(self, values: list[ir.Value], at: ir.Value, known: dict[int, ir.Value]) -> None:
        """Emit code that ends the lanes (replicas) whose stop condition holds after step `at`, with new coordinates `values`.

        `known` has the LLVM values that the step has computed, by node index.
        """


class EveryStepEmitter(StopCheckEmitter):
    """Emitter of code that evaluates the stop condition after each step."""

    def __init__(self, writer: FunctionWriter, check: EveryStepCheck) -> None:
        super().__init__(writer)
        self.check = check

    def emit_check_after_step(self, values, at, known):
        w, program = self.writer, self.writer.replica.program
        w.v.emit(program, program.order([self.check.stop_index], known), known)
        w.emit_lane_stop(w.b.and_(w.b.load(w.moving), known[self.check.stop_index]), values, at)


class BallEmitter(StopCheckEmitter):
    """Emitter of code that evaluates the stop condition only after the state has left a ball in which it is known to fail.

    The ball is around the state of the last evaluation. The program says whether the condition may hold within a trial radius,
    which grows if the ball excluded stopping, and shrinks if it did not. A negative radius marks a lane without a ball.
    """

    def __init__(self, writer: FunctionWriter, check: BallCheck) -> None:
        super().__init__(writer)
        self.check = check

    def emit_functions(self):
        self.function = self.writer.emit_rare_function("near", self.check)

    def begin(self, pointers):
        new_variable = lambda: self.writer.v.allocate_variable(self.writer.v.llvm_type("f64"))
        self.center = [new_variable() for _ in self.writer.changed_indices]
        self.radius, self.trial = new_variable(), new_variable()

    def begin_vector(self, index):
        w = self.writer
        w.b.store(w.v.const(-1.0, "f64"), self.radius)
        w.b.store(w.v.const(INITIAL_RADIUS, "f64"), self.trial)

    def emit_check_after_step(self, values, at, known):
        w, b, v = self.writer, self.writer.b, self.writer.v
        distance = v.const(0.0, "f64")  # squared
        for value, slot in zip(values, self.center, strict=True):
            change = b.fsub(value, b.load(slot), flags=FAST_MATH_FLAGS)
            distance = b.fadd(distance, b.fmul(change, change, flags=FAST_MATH_FLAGS), flags=FAST_MATH_FLAGS)
        radius = b.load(self.radius)
        # |r| r is negative without a ball; the unordered comparison is true for NaN too.
        outside = b.fcmp_unordered(">", distance, b.fmul(v.intrinsic("fabs", radius), radius))
        out = b.and_(b.load(w.moving), outside)
        with b.if_then(v.emit_any_lane(out), likely=False):
            answers = w.emit_rare_call(self.function, values, len(self.check), radius=self.trial)
            hit, may = (b.fcmp_ordered("!=", answer, v.const(0.0, "f64")) for answer in answers)
            radius = b.load(self.trial)
            b.store(b.select(may, v.const(-1.0, "f64"), radius), self.radius)
            b.store(b.fmul(radius, b.select(may, v.const(RADIUS_SHRINKAGE, "f64"), v.const(RADIUS_GROWTH, "f64"))), self.trial)
            # All lanes get new balls: their answers were computed in any case.
            for value, slot in zip(values, self.center, strict=True):
                b.store(value, slot)
            w.emit_lane_stop(b.and_(b.load(w.moving), hit), values, at)


class BoundEmitter(StopCheckEmitter):
    """Emitter of code that evaluates a quadratic bound after each step, and renews it where it no longer excludes stopping.

    The new bound is the program's cheap bound where that suffices, else one from the host (Python), which also evaluates the
    condition.
    """

    pointers = 2
    """Number of pointer arguments: the coefficients of the bounds, and the callback into Python."""

    def __init__(self, writer: FunctionWriter, check: BoundCheck) -> None:
        super().__init__(writer)
        self.check = check
        self.inert = inert_coordinates(writer.replica)

    def emit_functions(self):
        self.function = (
            self.writer.emit_rare_function("bound", self.check.coefficient_indices) if self.check.coefficient_indices else None
        )

    def begin(self, pointers):
        self.bounds, self.host = pointers

    def begin_vector(self, index):
        self.index = index
        self.rows = self.writer.coordinate_pointers(self.bounds, "f64", index, 1 + 2 * len(self.writer.changed_indices))

    def emit_check_after_step(self, values, at, known):
        w, b, v, none = self.writer, self.writer.b, self.writer.v, self.writer.v.const(0.0, "f64")
        left, *rest = map(w.load, self.rows)
        lines, bends = rest[: len(values)], rest[len(values) :]
        for i, (value, line, bend) in enumerate(zip(values, lines, bends, strict=True)):
            if i in self.inert:
                continue
            slope = b.fsub(line, b.fmul(bend, value, flags=FAST_MATH_FLAGS), flags=FAST_MATH_FLAGS)
            left = b.fadd(left, b.fmul(slope, value, flags=FAST_MATH_FLAGS), flags=FAST_MATH_FLAGS)
        out = b.and_(b.load(w.moving), b.fcmp_unordered("<=", left, none))
        with b.if_then(v.emit_any_lane(out), likely=False):
            # The cheap bound first: a call of the host costs far more than the bound.
            if self.function is not None:
                value, *row = w.emit_rare_call(self.function, values, len(self.check.coefficient_indices))
                proven = b.and_(out, b.fcmp_ordered(">", value, none))
                for number, place in zip(row, self.rows, strict=True):
                    w.store_lanes(proven, number, place)
                out = b.and_(out, b.not_(proven))
            self.emit_host_call(out, values, at)

    def emit_host_call(self, out: ir.Value, values: list[ir.Value], at: ir.Value) -> None:
        """Emit a call of Python for the lanes (replicas) `out`; it marks those that stop and writes new bounds for the rest."""
        w, b, v = self.writer, self.writer.b, self.writer.v
        with b.if_then(v.emit_any_lane(out), likely=False):
            lanes, bounds = w.allocate(1), b.bitcast(self.rows[0], FLOAT64_TYPE.as_pointer())
            row = w.vector_pointers(lanes, 1)[0]
            w.store(b.select(out, v.const(1.0, "f64"), v.const(0.0, "f64")), row)
            kind = ir.FunctionType(ir.VoidType(), [INT64_TYPE, *[FLOAT64_TYPE.as_pointer()] * 3])
            b.call(b.bitcast(self.host, kind.as_pointer()), [self.index, w.emit_state_copy(values), lanes, bounds])
            stops = b.fcmp_ordered("==", w.load(row), v.const(STOPS, "f64"))
            w.emit_lane_stop(b.and_(b.load(w.moving), stops), values, at)


def make_stop_check(writer: FunctionWriter) -> StopCheckEmitter:
    """Return the emitter that adds the check of the stop condition to the LLVM function that `writer` writes."""
    kinds: dict[type, Any] = {EveryStepCheck: EveryStepEmitter, BallCheck: BallEmitter, BoundCheck: BoundEmitter}
    check = writer.replica.check
    return StopCheckEmitter(writer) if check is None else kinds[type(check)](writer, check)


def inert_coordinates(replica: Replica) -> set[int]:
    """Return the indices of the changing coordinates whose coefficients in a stop condition's cheap bound are always zero.

    A cheap bound must depend on every coordinate on which another bound depends, so these are zero in all bounds.
    """
    if not isinstance(replica.check, BoundCheck) or not replica.check.coefficient_indices:
        return set()
    rows = np.reshape(replica.check.coefficient_indices[2:], (2, -1))
    return {i for i, both in enumerate(rows.T) if all(replica.program.constant_value(place) == 0 for place in both)}
