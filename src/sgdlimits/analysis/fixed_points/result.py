"""The result of `fixed_points`: a table of orbits of fixed points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import PyTree

from sgdlimits.analysis.fixed_points.stability import Stability
from sgdlimits.analysis.summary import IntervalEstimate
from sgdlimits.text import format_count, format_table

MAX_EIGENVALUES_PRINTED = 3
"""Number of eigenvalues that a row of the table shows."""
# headings of the printed table
COLUMNS = ("copies", "dimension", "stability", "eigenvalues", "risk", "basin", "found", "at")
"""Names of the columns of the printed table of fixed points."""


@dataclass(frozen=True, repr=False)
class FixedPoint:
    """Connected component of fixed points of the ODE, representing the orbit of all its images under the symmetries.

    Parameters
    ----------
    point : statistics of one point of the component, in its interior if it is a manifold
    eigenvalues : eigenvalues of the Jacobian of the drift at that point along the free coordinates, by falling real part
    dimension : 0 for an isolated point, 1 for a curve, ...; where the search was cut off, the number of zero eigenvalues
    stability : "stable"; "unstable" if the flow leaves the component near one of its points; "neutral" if the flow returns to
        the component but not to the same point; "unknown" if the search was cut off before
    copies : number of components in the orbit, this one included
    residual : norm of the drift at the point
    risk : population risk at the point
    found : number of searches that ended in the orbit
    basin : share of random starts that the flow carries to the orbit, with confidence interval; None unless `basins` was given
    images : statistics of the distinct images of the point under the symmetries, the point included; images first
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

    def table_row(self) -> tuple[str, ...]:
        """Return the strings that describe this fixed point in the printed table, one for each entry of `COLUMNS`."""
        size = np.abs(self.eigenvalues)
        values = np.where(size < 1e-9 * size.max(), 0, self.eigenvalues)[:MAX_EIGENVALUES_PRINTED]
        imaginary = lambda value: f"{value.imag:+.2g}i" if abs(value.imag) > 1e-9 else ""
        eigenvalues = ", ".join(f"{value.real:.3g}{imaginary(value)}" for value in values)
        more = ", ..." if self.eigenvalues.size > MAX_EIGENVALUES_PRINTED else ""
        basin = "" if self.basin is None else repr(self.basin)
        first = (str(self.copies), str(self.dimension), self.stability, eigenvalues + more, f"{self.risk:.4g}")
        named = {name: getattr(self.point, name) for name in type(self.point).dims if name != "Q"}
        # named scalars become columns of their own
        named = {**named.pop("a"), **named} if isinstance(named.get("a"), dict) else named
        where = ", ".join(f"{name} = {_format_array(np.asarray(value))}" for name, value in named.items())
        return (*first, basin, str(self.found), where)

    def __repr__(self) -> str:
        parts = zip(COLUMNS, self.table_row(), strict=True)
        return f"FixedPoint({', '.join(f'{name} {text}' for name, text in parts if text)})"


@dataclass(frozen=True, repr=False)
class FixedPoints(Sequence[FixedPoint]):
    """Table of the fixed points of an ODE, with one row for each orbit under the symmetries: stable ones first, then by risk.

    Parameters
    ----------
    orbits : one `FixedPoint` per orbit
    name : name of the problem
    symmetries : order of the symmetry group
    searches : number of searches that ended at a fixed point
    elsewhere : share of random starts that the flow carries to none of the fixed points; None unless `basins` was given
    stopped : when and before which stages the search was cut off; empty if it finished
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
        """Whether the search for fixed points ran to its end."""
        return not self.stopped

    @property
    def components(self) -> int:
        """Number of connected components of fixed points, all images under the symmetries included."""
        return sum(orbit.copies for orbit in self.orbits)

    @property
    def stable(self) -> tuple[FixedPoint, ...]:
        """Stable fixed points, one for each orbit under the symmetries."""
        return tuple(orbit for orbit in self.orbits if orbit.stability == "stable")

    @property
    def unseen(self) -> float:
        """Estimated probability that one more search finds a new orbit (Good-Turing).

        It is the share of searches that are the only ones to have ended in their orbit.
        """
        return sum(orbit.found == 1 for orbit in self.orbits) / self.searches if self.searches else 1.0

    def __repr__(self) -> str:
        head = (
            f"{self.name}: {format_count(self.components, 'component')} of fixed points, "
            f"{format_count(len(self), 'orbit')} under "
            f"{format_count(self.symmetries, 'symmetry', 'symmetries')}; {self.searches} searches, "
            f"about {100 * self.unseen:.3g} % "
            "of more would find others"
        )
        used = [i for i, name in enumerate(COLUMNS) if name != "basin" or self.elsewhere is not None]
        rows = [[row[i] for i in used] for row in (COLUMNS, *(orbit.table_row() for orbit in self.orbits))]
        head += f"\n  The search was cut off {self.stopped}." if self.stopped else ""
        tail = "" if self.elsewhere is None else f"\n  elsewhere {self.elsewhere!r}"
        return f"{head}\n{format_table(rows, indent='  ')}{tail}"


class SearchInterrupted(KeyboardInterrupt):
    """Exception when Ctrl-C interrupts `fixed_points`; its attribute `found` has the `FixedPoints` found until then."""

    def __init__(self, found: FixedPoints) -> None:
        super().__init__("interrupted; the fixed points found so far are in the attribute `found` of this exception")
        self.found = found


def estimate_proportion(part: int, runs: int) -> IntervalEstimate:
    """Return the proportion part / runs with its 95 % confidence interval (Clopper and Pearson)."""
    interval = scipy.stats.binomtest(part, runs).proportion_ci(0.95, method="exact")
    return IntervalEstimate(part / runs, float(interval.low), float(interval.high))


def _format_array(value: np.ndarray) -> str:
    """Format an array as a string, with three digits and nested brackets."""
    if value.ndim == 0:
        return f"{0.0 if abs(value) < 1e-9 else float(value):.3g}"
    return f"[{' '.join(_format_array(each) for each in value)}]"
