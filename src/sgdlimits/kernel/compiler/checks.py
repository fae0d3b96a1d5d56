"""Code that checks a stop condition after each step: a hook for back ends, and three implementations.

A cheap condition is evaluated after each step. An expensive one is skipped while a bound proves it false: either a ball around
the last state in which it was evaluated, or a quadratic function of the state. The code of a bound is a function of its own,
which is called rarely and therefore stays out of the loop over steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.ir as ir
import numpy as np

from sgdlimits.kernel.compiler.replica import STOPS, ByBound, EveryStep, Replica, WithinBall
from sgdlimits.kernel.compiler.vectors import F64, FLAGS, I64

Writer = Any
"""A `sgdlimits.kernel.compiler.llvm.Writer`. That module imports this one, so its class cannot be named here."""
FIRST_RADIUS = 0.01
"""Radius of the first ball, in the units of the state, whose coordinates are of order 1. Later radii adapt."""
RADIUS_GROWTH, RADIUS_SHRINKAGE = 2.0, 0.25
"""Factors of the radius after a ball that excluded stopping, and after one that did not."""


class StopCheck:
    """Hook of a `Writer`: what it emits for a stop condition. This class emits nothing, for steps without a condition."""

    pointers = 0
    """Number of pointers that the compiled function takes for the check."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def write_functions(self) -> None:
        """Write functions that the main function calls."""

    def begin(self, pointers: Sequence[ir.Value]) -> None:
        """Declare the variables of the main function."""

    def begin_vector(self, index: ir.Value) -> None:
        """Prepare for the steps of the vector of replicas with this index."""

    def after_step(self, values: list[ir.Value], at: ir.Value, known: dict[int, ir.Value]) -> None:
        """End the lanes that stop after step `at`, with the coordinates `values`; `known` are the values of the step."""


class CheckEveryStep(StopCheck):
    """Evaluate the condition after each step."""

    def __init__(self, writer: Writer, check: EveryStep) -> None:
        super().__init__(writer)
        self.check = check

    def after_step(self, values, at, known):
        w, program = self.writer, self.writer.replica.program
        w.v.emit(program, program.order([self.check.stops], known), known)
        w.stop_lanes(w.b.and_(w.b.load(w.moving), known[self.check.stops]), values, at)


class CheckOutsideBall(StopCheck):
    """Evaluate the condition if a lane left the ball around its last evaluation within which the condition is known to fail.

    The program says whether it may hold within a trial radius. The radius grows if the ball excluded stopping, and shrinks if
    it did not. A negative radius marks a lane without a ball.
    """

    def __init__(self, writer: Writer, check: WithinBall) -> None:
        super().__init__(writer)
        self.check = check

    def write_functions(self):
        self.function = self.writer.write_rare("near", self.check)

    def begin(self, pointers):
        slot = lambda: self.writer.v.slot(self.writer.v.type("f64"))
        self.center = [slot() for _ in self.writer.moved]
        self.radius, self.trial = slot(), slot()

    def begin_vector(self, index):
        w = self.writer
        w.b.store(w.v.const(-1.0, "f64"), self.radius)
        w.b.store(w.v.const(FIRST_RADIUS, "f64"), self.trial)

    def after_step(self, values, at, known):
        w, b, v = self.writer, self.writer.b, self.writer.v
        distance = v.const(0.0, "f64")  # squared
        for value, slot in zip(values, self.center, strict=True):
            change = b.fsub(value, b.load(slot), flags=FLAGS)
            distance = b.fadd(distance, b.fmul(change, change, flags=FLAGS), flags=FLAGS)
        radius = b.load(self.radius)
        # |r| r is negative without a ball; the unordered comparison is true for NaN too.
        outside = b.fcmp_unordered(">", distance, b.fmul(v.intrinsic("fabs", radius), radius))
        out = b.and_(b.load(w.moving), outside)
        with b.if_then(v.any(out), likely=False):
            answers = w.call_rare(self.function, values, len(self.check), radius=self.trial)
            hit, may = (b.fcmp_ordered("!=", answer, v.const(0.0, "f64")) for answer in answers)
            radius = b.load(self.trial)
            b.store(b.select(may, v.const(-1.0, "f64"), radius), self.radius)
            b.store(b.fmul(radius, b.select(may, v.const(RADIUS_SHRINKAGE, "f64"), v.const(RADIUS_GROWTH, "f64"))), self.trial)
            # All lanes get new balls: their answers were computed in any case.
            for value, slot in zip(values, self.center, strict=True):
                b.store(value, slot)
            w.stop_lanes(b.and_(b.load(w.moving), hit), values, at)


class CheckByBound(StopCheck):
    """Evaluate a quadratic bound after each step; replace it where it no longer proves that the run continues.

    The new bound is the program's cheap one where that suffices, else the host's answer. The host also evaluates the condition.
    """

    pointers = 2
    """Coefficients of the bounds, and the function of the host."""

    def __init__(self, writer: Writer, check: ByBound) -> None:
        super().__init__(writer)
        self.check = check
        self.inert = inert_coordinates(writer.replica)

    def write_functions(self):
        self.function = self.writer.write_rare("bound", self.check.row) if self.check.row else None

    def begin(self, pointers):
        self.bounds, self.host = pointers

    def begin_vector(self, index):
        self.index = index
        self.rows = self.writer.rows(self.bounds, "f64", index, 1 + 2 * len(self.writer.moved))

    def after_step(self, values, at, known):
        w, b, v, none = self.writer, self.writer.b, self.writer.v, self.writer.v.const(0.0, "f64")
        left, *rest = map(w.load, self.rows)
        lines, bends = rest[: len(values)], rest[len(values) :]
        for i, (value, line, bend) in enumerate(zip(values, lines, bends, strict=True)):
            if i in self.inert:
                continue
            slope = b.fsub(line, b.fmul(bend, value, flags=FLAGS), flags=FLAGS)
            left = b.fadd(left, b.fmul(slope, value, flags=FLAGS), flags=FLAGS)
        out = b.and_(b.load(w.moving), b.fcmp_unordered("<=", left, none))
        with b.if_then(v.any(out), likely=False):
            # The cheap bound first: a call of the host costs far more than the bound.
            if self.function is not None:
                value, *row = w.call_rare(self.function, values, len(self.check.row))
                proven = b.and_(out, b.fcmp_ordered(">", value, none))
                for number, place in zip(row, self.rows, strict=True):
                    w.store_lanes(proven, number, place)
                out = b.and_(out, b.not_(proven))
            self.ask_host(out, values, at)

    def ask_host(self, out: ir.Value, values: list[ir.Value], at: ir.Value) -> None:
        """Call the host for the lanes `out`: it says which of them stop, and writes new bounds for the lanes that continue."""
        w, b, v = self.writer, self.writer.b, self.writer.v
        with b.if_then(v.any(out), likely=False):
            lanes, bounds = w.allocate(1), b.bitcast(self.rows[0], F64.as_pointer())
            row = w.vector_pointers(lanes, 1)[0]
            w.store(b.select(out, v.const(1.0, "f64"), v.const(0.0, "f64")), row)
            kind = ir.FunctionType(ir.VoidType(), [I64, *[F64.as_pointer()] * 3])
            b.call(b.bitcast(self.host, kind.as_pointer()), [self.index, w.copy_state(values), lanes, bounds])
            stops = b.fcmp_ordered("==", w.load(row), v.const(STOPS, "f64"))
            w.stop_lanes(b.and_(b.load(w.moving), stops), values, at)


def check_for(writer: Writer) -> StopCheck:
    """Return the hook for the check of a replica."""
    kinds: dict[type, Any] = {EveryStep: CheckEveryStep, WithinBall: CheckOutsideBall, ByBound: CheckByBound}
    check = writer.replica.check
    return StopCheck(writer) if check is None else kinds[type(check)](writer, check)


def inert_coordinates(replica: Replica) -> set[int]:
    """Return the indices, among the coordinates that move, with zero coefficients in the cheap bound in every state.

    A cheap bound must depend on every coordinate on which another bound depends, so these are zero in all bounds.
    """
    if not isinstance(replica.check, ByBound) or not replica.check.row:
        return set()
    rows = np.reshape(replica.check.row[2:], (2, -1))
    return {i for i, both in enumerate(rows.T) if all(replica.program.value(place) == 0 for place in both)}
