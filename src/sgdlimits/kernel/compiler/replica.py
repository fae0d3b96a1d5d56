"""A program of one replica's step, as back ends take it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sgdlimits.kernel.compiler.program import Program


class Near(NamedTuple):
    """Whether a run stops in a state, and whether it may in another within "radius": functions of the state before a step."""

    stops: int
    may: int


class Replica(NamedTuple):
    """A flat program of one step, and which of its numbers are what.

    `state` are the numbers before the step and `after` those behind it; `memory` is what the condition remembers, and `stops`
    whether the run ends after the step. Where that is dear, `near` is there in its place, and where a bound is cheaper, or the
    condition too large, the state is `guarded` (see `sgdlimits.kernel.guard`): by a bound whose value and row in the state
    before a step are these, or by none that is closed. Inputs have names: ("number", i), ("state", i), ("memory", i), "run",
    "seed", "seed_high", "step", "t", "size", "radius".
    """

    program: Program
    state: tuple[int, ...]
    after: tuple[int, ...]
    memory: tuple[int, ...]
    stops: int | None
    near: Near | None
    guarded: tuple[int, ...] | None = None

    @property
    def inputs(self) -> dict[Any, int]:
        """The inputs by name."""
        return {node.what: place for place, node in enumerate(self.program.nodes) if node.op == "input"}

    @property
    def numbers(self) -> list[int]:
        """Which numbers of the process and its condition it needs."""
        return sorted(name[1] for name in self.inputs if name[0] == "number")

    @property
    def length(self) -> int:
        """How many operations it has, without those of a bound, which are rare."""
        return len(self.program.nodes) - len(self.program.order(self.guarded or (), set(self.program.order(self.after))))

    @property
    def moved(self) -> list[int]:
        """Which numbers of the state a step changes."""
        return [i for i, (before, after) in enumerate(zip(self.state, self.after, strict=True)) if before != after]

    @property
    def inert(self) -> set[int]:
        """Which of these have no part in a closed bound, whatever the state, and so in no other."""
        rows = np.reshape((self.guarded or (0, 0))[2:], (2, -1))
        return {i for i, both in enumerate(rows.T) if all(self.program.value(place) == 0 for place in both)}
