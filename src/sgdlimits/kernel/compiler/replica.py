"""Flat program of one replica's step, with the roles of its values, in the form that back ends translate."""

from __future__ import annotations

from typing import Any, NamedTuple

from sgdlimits.kernel.compiler.program import Program

CONTINUES, STOPS = 1.0, 2.0
"""Answers of the Python callback for a replica whose bound no longer excludes stopping: it continues, or it stops."""


class EveryStepCheck(NamedTuple):
    """Check of a stop condition that is evaluated after each step; `stop_index` is the index of the node with its value."""

    stop_index: int


class BallCheck(NamedTuple):
    """Check of an expensive stop condition, which is skipped while the state stays in a ball around the last state checked.

    Both fields are node indices of bools: `stop_index` says whether the condition holds in the state before a step,
    `may_stop_index` whether it may hold in some state within the distance "radius", an input.
    """

    stop_index: int
    may_stop_index: int


class BoundCheck(NamedTuple):
    """Check of a stop condition by a quadratic bound, with coefficients from the host or the program.

    See `sgdlimits.kernel.stopping`. `coefficient_indices` has the node indices of the cheap bound in the state before a step:
    its value there, then its coefficients. Without a cheap bound it is empty.
    """

    coefficient_indices: tuple[int, ...]


class Replica(NamedTuple):
    """Flat program of one run's step, with the node indices of the states before and after it, and the stop check.

    Inputs have names: ("number", i), ("state", i), ("memory", i), "run", "seed", "seed_high", "step", "t", "size", "radius".

    Attributes
    ----------
    program : graph of all operations
    state, after : node indices of the coordinates before and after the step
    memory : node indices of the values that the stop condition stored at the start
    check : node indices for the check of the stop condition; None without a condition
    """

    program: Program
    state: tuple[int, ...]
    next_state: tuple[int, ...]
    memory: tuple[int, ...]
    check: EveryStepCheck | BallCheck | BoundCheck | None

    @property
    def inputs(self) -> dict[Any, int]:
        """Node indices of the program's inputs, by name."""
        return {node.data: place for place, node in enumerate(self.program.nodes) if node.op == "input"}

    @property
    def parameter_indices(self) -> list[int]:
        """Indices of the parameters that the program reads, among all parameters of the process and its stop condition."""
        return sorted(name[1] for name in self.inputs if name[0] == "number")

    @property
    def operation_count(self) -> int:
        """Number of operations of a step, not counting those of the stop bound, which is rarely computed."""
        # Only the operations that the bound needs beyond those of the step.
        rare = self.check.coefficient_indices if isinstance(self.check, BoundCheck) else ()
        return len(self.program.nodes) - len(self.program.order(rare, set(self.program.order(self.next_state))))

    @property
    def changed_indices(self) -> list[int]:
        """Indices of the state's coordinates that a step changes."""
        return [i for i, (before, after) in enumerate(zip(self.state, self.next_state, strict=True)) if before != after]
