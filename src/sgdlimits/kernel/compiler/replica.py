"""Flat program of one replica's step, with the roles of its values, as back ends receive it."""

from __future__ import annotations

from typing import Any, NamedTuple

from sgdlimits.kernel.compiler.program import Program

CONTINUES, STOPS = 1.0, 2.0
"""Answers of the host, for a lane, to the question of `ByBound`."""


class EveryStep(NamedTuple):
    """Check of a cheap stop condition, which is evaluated after each step: `stops` is its place, in the new state."""

    stops: int


class WithinBall(NamedTuple):
    """Check of an expensive stop condition, which is skipped while the state stays in a ball around its last evaluation.

    `stops` is the place of whether it holds in the state before a step, `may_stop` of whether it may hold within the distance
    given by the input "radius".
    """

    stops: int
    may_stop: int


class ByBound(NamedTuple):
    """Check by a quadratic bound, whose coefficients the host or the program supplies (see `sgdlimits.kernel.stopping`).

    `row` is the cheap bound in the state before a step: its value there, then its coefficients. Without one it is empty.
    """

    row: tuple[int, ...]


class Replica(NamedTuple):
    """Flat program of one step, and the roles of its values.

    Inputs have names: ("number", i), ("state", i), ("memory", i), "run", "seed", "seed_high", "step", "t", "size", "radius".

    Attributes
    ----------
    program : the values and how they depend on each other
    state, after : places of the coordinates before and after the step
    memory : places of what the stop condition remembers of the start
    check : how the program finds out whether the run stops; None without a condition
    """

    program: Program
    state: tuple[int, ...]
    after: tuple[int, ...]
    memory: tuple[int, ...]
    check: EveryStep | WithinBall | ByBound | None

    @property
    def inputs(self) -> dict[Any, int]:
        """Places of the inputs by name."""
        return {node.what: place for place, node in enumerate(self.program.nodes) if node.op == "input"}

    @property
    def numbers(self) -> list[int]:
        """Indices of the parameters, among those of the process and its condition, that the program reads."""
        return sorted(name[1] for name in self.inputs if name[0] == "number")

    @property
    def length(self) -> int:
        """Number of operations of a step, without those of a bound, which run rarely."""
        # Only the operations that the bound needs beyond those of the step.
        rare = self.check.row if isinstance(self.check, ByBound) else ()
        return len(self.program.nodes) - len(self.program.order(rare, set(self.program.order(self.after))))

    @property
    def moved(self) -> list[int]:
        """Indices of the coordinates that a step changes."""
        return [i for i, (before, after) in enumerate(zip(self.state, self.after, strict=True)) if before != after]
