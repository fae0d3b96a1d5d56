"""Piecewise constant controls and their feasible set: bounds on each piece's value, and budgets on integrals over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from sgdlimits.domain import Count, checked
from sgdlimits.errors import BadInput, shorten
from sgdlimits.part import Part
from sgdlimits.schedule_forms import Steps
from sgdlimits.text import suggest_name

BISECTION_COUNT = 60
"""Number of bisections that find the Lagrange multiplier of a budget to double precision."""


@checked
class Control(Part):
    """Piecewise constant control, with equal pieces on [0, t_max] and values between two bounds.

    Parameters
    ----------
    pieces : number of pieces
    low, high : bounds on each value

    >>> import sgdlimits as sl
    >>> sl.Control(pieces=50, low=0.0, high=4.0)
    Control(pieces=50, low=0, high=4)
    """

    pieces: Count = eqx.field(static=True)
    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)

    def __check_init__(self) -> None:
        if not self.low < self.high:
            raise BadInput(f"low must be below high; got low = {self.low:g} and high = {self.high:g}. Give a larger high=.")


@checked
class Budget(Part):
    """Bound on the integral of a control over [0, t_max].

    Parameters
    ----------
    control : name of the control
    total : largest value of the integral

    >>> import sgdlimits as sl
    >>> sl.Budget("lr", total=20.0)
    Budget(control='lr', total=20)
    """

    control: str = eqx.field(static=True)
    total: float = eqx.field(static=True)


def as_budgets(name: str, value: Any) -> tuple[Budget, ...]:
    """Return a budget or a sequence of budgets as a tuple, or raise `BadInput` for anything else."""
    budgets = (value,) if isinstance(value, Budget) or not np.iterable(value) else tuple(value)
    for budget in budgets:
        if not isinstance(budget, Budget):
            raise BadInput(f"{name} must be a Budget or several Budgets; got {shorten(budget)}. Give Budget(control, total).")
    return budgets


class FeasibleSet:
    """Set of piece values within bounds and budgets.

    A scaled vector z has the values of all pieces of all controls, mapped linearly from their bounds to [0, 1].
    """

    def __init__(self, controls: Mapping[str, Any], budgets: Sequence[Budget], t_max: float) -> None:
        if not controls:
            raise BadInput('controls= is empty. Give, for instance, {"lr": Control(pieces=50, low=0.0, high=4.0)}.')
        for name, control in controls.items():
            if not isinstance(control, Control):
                got = shorten(control)
                raise BadInput(f"controls[{name!r}] must be a Control; got {got}. Give Control(pieces, low, high).")
        self.controls, self.t_max = dict(controls), t_max
        pieces = [control.pieces for control in controls.values()]
        ends = np.cumsum([0, *pieces])
        self.slices = tuple((name, int(a), int(b)) for name, a, b in zip(controls, ends[:-1], ends[1:], strict=True))
        self.low = np.repeat([float(each.low) for each in controls.values()], pieces)
        self.width = np.repeat([float(each.high) - float(each.low) for each in controls.values()], pieces)
        self.caps = self._caps(budgets)

    def _caps(self, budgets: Sequence[Budget]) -> dict[str, float]:
        """Return the largest mean scaled value that a budget allows, by the name of each control with a budget."""
        caps: dict[str, float] = {}
        for budget in budgets:
            if budget.control not in self.controls:
                hint = suggest_name(budget.control, self.controls)
                raise BadInput(
                    f"a budget is for {budget.control!r}, which is not a control. {hint}"
                    f"The controls are {', '.join(self.controls)}."
                )
            control = self.controls[budget.control]
            cap = (budget.total / self.t_max - control.low) / (control.high - control.low)
            if cap < 0:
                raise BadInput(
                    f"the budget of {budget.control}, {budget.total:g}, is below the smallest possible integral, "
                    f"{control.low * self.t_max:g}. Give a larger total= or a smaller low=."
                )
            if cap < 1:
                caps[budget.control] = min(cap, caps.get(budget.control, 1.0))
        return caps

    def values(self, z: np.ndarray) -> Float[np.ndarray, " n"]:
        """Convert a scaled vector z, with entries in [0, 1], to the values of all pieces."""
        return self.low + self.width * z

    def steps(self, z: np.ndarray) -> dict[str, Steps]:
        """Convert a scaled vector z, with entries in [0, 1], to the schedule of each control, by name."""
        values = self.values(z)
        return {name: Steps(self.times(name), values[a:b]) for name, a, b in self.slices}

    def times(self, name: str) -> np.ndarray:
        """Return the times at which a control changes from one piece to the next."""
        return np.linspace(0.0, self.t_max, self.controls[name].pieces + 1)[1:-1]

    def constant(self, levels: np.ndarray) -> np.ndarray:
        """Return the scaled vector of controls that are constant in time; `levels` has one scaled value for each control."""
        return np.repeat(levels, [b - a for _, a, b in self.slices])

    @property
    def largest_constants(self) -> np.ndarray:
        """Largest value, scaled to [0, 1], at which each control can be constant without exceeding its budget."""
        return np.array([self.caps.get(name, 1.0) for name in self.controls])

    def project(self, z: np.ndarray) -> np.ndarray:
        """Return the feasible scaled vector closest to z."""
        nearest = np.clip(z, 0.0, 1.0)
        for name, a, b in self.slices:
            cap = self.caps.get(name, 1.0)
            if nearest[a:b].mean() > cap:
                low, high = 0.0, float(np.max(z[a:b]))
                for _ in range(BISECTION_COUNT):
                    middle = (low + high) / 2
                    above = np.clip(z[a:b] - middle, 0.0, 1.0).mean() > cap
                    low, high = (middle, high) if above else (low, middle)
                nearest[a:b] = np.clip(z[a:b] - high, 0.0, 1.0)
        return nearest

    def projected_gradient(self, z: np.ndarray, gradient: np.ndarray) -> float:
        """Return the distance from the scaled vector z to the projection of z - gradient: zero at a stationary point."""
        return float(np.linalg.norm(self.project(z - gradient) - z))

    def inequalities(self) -> list[dict[str, Any]]:
        """Return the budgets as constraints in the form of SciPy's SLSQP."""
        found = []
        for name, a, b in self.slices:
            if name in self.caps:
                row = np.zeros(len(self.low))
                row[a:b] = -1.0 / (b - a)
                cap = self.caps[name]
                found.append({"type": "ineq", "fun": lambda z, row=row, cap=cap: cap + row @ z, "jac": lambda z, row=row: row})
        return found
