"""Fixed points as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import PyTree

from sgdlimits.analysis.fixed_points.stability import Stability
from sgdlimits.analysis.summary import IntervalEstimate
from sgdlimits.text import count, table

SHOWN = 3
COLUMNS = ("copies", "dimension", "stability", "eigenvalues", "risk", "basin", "found", "at")


@dataclass(frozen=True, repr=False)
class FixedPoint:
    """A connected component of fixed points of the ODE, for itself and for its images under the symmetries.

    Parameters
    ----------
    point : statistics of one of its points, inside it where it is a manifold
    eigenvalues : of the Jacobian of the drift at that point along the free coordinates, the largest real part first, in 1/t
    dimension : 0 for an isolated point, 1 for a curve, ...; where the search was cut off, the number of zero eigenvalues
    stability : "stable", "unstable" where the flow leaves it somewhere, "neutral" where it returns but not to the same point,
        "unknown" where the search was cut off before
    copies : how many components are images of this one, itself included
    residual : the norm of the drift at the point
    risk : the population risk at the point
    found : how many searches ended in it or in an image of it
    basin : the share of random starts that the flow carries to it or to an image of it, where it was asked for
    images : statistics of the point's different images under the symmetries, itself included; images first
    """

    point: PyTree
    eigenvalues: np.ndarray
    dimension: int
    stability: Stability
    copies: int
    residual: float
    risk: float
    found: int
    basin: IntervalEstimate | None = None
    images: PyTree = None

    def row(self) -> tuple[str, ...]:
        """The columns of a table."""
        values = np.where(np.abs(self.eigenvalues) < 1e-9 * np.abs(self.eigenvalues).max(), 0, self.eigenvalues)[:SHOWN]
        numbers = ", ".join(f"{value.real:.3g}" + (f"{value.imag:+.2g}i" if abs(value.imag) > 1e-9 else "") for value in values)
        more = ", ..." if self.eigenvalues.size > SHOWN else ""
        basin = "" if self.basin is None else repr(self.basin)
        first = (str(self.copies), str(self.dimension), self.stability, numbers + more, f"{self.risk:.4g}")
        named = {name: getattr(self.point, name) for name in type(self.point).dims if name != "Q"}
        named = {**named.pop("a"), **named} if isinstance(named.get("a"), dict) else named
        where = ", ".join(f"{name} = {_numbers(np.asarray(value))}" for name, value in named.items())
        return (*first, basin, str(self.found), where)

    def __repr__(self) -> str:
        parts = zip(COLUMNS, self.row(), strict=True)
        return f"FixedPoint({', '.join(f'{name} {text}' for name, text in parts if text)})"


@dataclass(frozen=True, repr=False)
class FixedPoints(Sequence[FixedPoint]):
    """The fixed points that were found, one for each orbit under the symmetries: stable ones first, then by risk.

    Parameters
    ----------
    orbits : a `FixedPoint` each
    name : of the problem
    symmetries : the order of the group of symmetries
    searches : how many searches ended at a fixed point
    elsewhere : the share of random starts that the flow carries to none of the fixed points, where basins were asked for
    stopped : when and before which stages the search was cut off; empty where it came to its end
    """

    orbits: tuple[FixedPoint, ...]
    name: str
    symmetries: int
    searches: int
    elsewhere: IntervalEstimate | None = None
    stopped: str = ""

    def __getitem__(self, index):
        return self.orbits[index]

    def __len__(self) -> int:
        return len(self.orbits)

    @property
    def complete(self) -> bool:
        """Whether the search came to its end."""
        return not self.stopped

    @property
    def components(self) -> int:
        """How many connected components there are, all images counted."""
        return sum(orbit.copies for orbit in self.orbits)

    @property
    def stable(self) -> tuple[FixedPoint, ...]:
        return tuple(orbit for orbit in self.orbits if orbit.stability == "stable")

    @property
    def unseen(self) -> float:
        """About which share of more searches would find new orbits: that of searches alone in theirs (Good and Turing)."""
        return sum(orbit.found == 1 for orbit in self.orbits) / self.searches if self.searches else 1.0

    def __repr__(self) -> str:
        head = (
            f"{self.name}: {count(self.components, 'component')} of fixed points, {count(len(self), 'orbit')} under "
            f"{count(self.symmetries, 'symmetry', 'symmetries')}; {self.searches} searches, about {100 * self.unseen:.3g} % "
            "of more would find others"
        )
        used = [i for i, name in enumerate(COLUMNS) if name != "basin" or self.elsewhere is not None]
        rows = [[row[i] for i in used] for row in (COLUMNS, *(orbit.row() for orbit in self.orbits))]
        head += f"\n  The search was cut off {self.stopped}." if self.stopped else ""
        tail = "" if self.elsewhere is None else f"\n  elsewhere {self.elsewhere!r}"
        return f"{head}\n{table(rows, indent='  ')}{tail}"


class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C during `fixed_points`. `found` is the table of what had been found."""

    def __init__(self, found: FixedPoints) -> None:
        super().__init__("interrupted; what was found is in the attribute `found` of this exception")
        self.found = found


def share(part: int, runs: int) -> IntervalEstimate:
    """A share of runs with its exact interval of 95 % (Clopper and Pearson)."""
    interval = scipy.stats.binomtest(part, runs).proportion_ci(0.95, method="exact")
    return IntervalEstimate(part / runs, float(interval.low), float(interval.high))


def _numbers(value: np.ndarray) -> str:
    if value.ndim == 0:
        return f"{0.0 if abs(value) < 1e-9 else float(value):.3g}"
    return f"[{' '.join(_numbers(each) for each in value)}]"
