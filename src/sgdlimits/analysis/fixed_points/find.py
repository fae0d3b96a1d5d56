"""`fixed_points`: the fixed points of a problem's ODE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from sgdlimits.analysis.fixed_points.components import Atlas, atlas_of, orbits_of
from sgdlimits.analysis.fixed_points.result import FixedPoint, FixedPoints, share
from sgdlimits.analysis.fixed_points.roots import linearised, roots_from, roots_near
from sgdlimits.analysis.fixed_points.settle import settle
from sgdlimits.analysis.fixed_points.stability import representative, spectra, stabilities
from sgdlimits.analysis.fixed_points.starts import draw_starts
from sgdlimits.analysis.fixed_points.symmetry import find_symmetries
from sgdlimits.analysis.fixed_points.system import System
from sgdlimits.analysis.summary import Estimate
from sgdlimits.errors import check_count
from sgdlimits.problem.base import Problem
from sgdlimits.start import Start, as_start

SEARCH_BLOCKS = 12
ORDER = ("stable", "neutral", "unstable")
AT_REST = 0.2
"""A flow has come to rest where a fixed point is this close, relative to 1 and its size; sliding along kinks needs the room."""


def fixed_points(
    problem: Problem,
    *,
    starts: Start | PyTree | None = None,
    count: int = 256,
    symmetries: str | Sequence[Callable[[PyTree], PyTree]] = "auto",
    basins: Start | PyTree | None = None,
    runs: int = 400,
    seed: int = 0,
    corrector: bool = True,
) -> FixedPoints:
    r"""The fixed points of a problem's ODE: isolated points and manifolds, their eigenvalues, stability and basins.

    Parameters
    ----------
    problem : any problem
    starts : where searches start: a law such as `RandomInit(d)`, or statistics, runs first. None draws random weights of
        several sizes, in most of which units, or what they see of the fixed directions, are switched off
    count : how many starts are drawn; three searches begin from each
    symmetries : "auto" finds signed permutations of units and fixed directions that leave the drift as it is; () uses none;
        or generators of a group, functions from statistics to statistics that are linear
    basins : a law of random starts, or statistics, runs first, that the flow carries to fixed points
    runs : how many such starts are drawn
    seed : a whole number; the same seed gives the same answer
    corrector : whether the drift contains the effect of the step size, as in `ODE`

    Notes
    -----
    Searches go by Levenberg's and Marquardt's method: MINPACK's (SciPy) from each start, and a simpler one, for many points at
    once, from the starts and from where the flow carries them. A search that succeeds ends where the drift is zero to rounding
    and weights with such statistics exist. Two roots belong to one component where the segment between them projects onto fixed
    points without a jump. A component is unstable where a point of it has a growing eigenvalue, or a small displacement leads
    away for good. This is a numerical answer: a component that no search meets is missing, and `unseen` estimates how likely
    that is.

    Examples
    --------
    >>> import sgdlimits as sl
    >>> found = sl.fixed_points(sl.presets.phase_retrieval(lr=0.1), count=32)
    >>> [(each.copies, each.stability, round(abs(float(each.point.M[0, 0])), 6)) for each in found]
    [(2, 'stable', 1.0), (1, 'unstable', 0.0)]

    See Also
    --------
    linearise : the Jacobian at a given point
    """
    check_count("count", count)
    batch = draw_starts(problem, count, seed) if starts is None else _batch(problem, starts, count, seed)
    system = System.of(problem, batch, corrector)
    x = system.rows(batch)
    group = find_symmetries(system, symmetries, x)
    searches = roots_from(system, x), roots_near(system, x), roots_near(system, settle(system, x, SEARCH_BLOCKS))
    found = np.concatenate([roots.x[roots.found] for roots in searches])
    atlas, owner = atlas_of(system, group, found)
    ends = None
    if basins is not None:
        ends = _ends(system, _batch(problem, basins, runs, seed))
        new = ends[atlas.locate(ends) < 0]
        atlas, owner = (atlas, owner) if not len(new) else atlas_of(system, group, np.concatenate([found, new]))
        ends = atlas.locate(ends)
    return _table(problem, atlas, Hits(owner[: len(found)], ends, runs), x)


class Hits(NamedTuple):
    """The root of the atlas that each search found, and the one that each start of the basins came to rest near."""

    searches: np.ndarray
    ends: np.ndarray | None
    runs: int

    def basin(self, mine: np.ndarray) -> Estimate | None:
        return None if self.ends is None else share(int(mine[self.ends[self.ends >= 0]].sum()), self.runs)

    def elsewhere(self) -> Estimate | None:
        return None if self.ends is None else share(self.runs - int((self.ends >= 0).sum()), self.runs)


def _table(problem: Problem, atlas: Atlas, hits: Hits, towards: np.ndarray) -> FixedPoints:
    """One row for each orbit of components."""
    system, labels = atlas.system, atlas.labels()
    orbits = orbits_of(labels)
    members = [orbits == orbit for orbit in np.unique(orbits)]
    components = [np.concatenate([atlas.points[mine], atlas.between(labels, int(mine.argmax()))]) for mine in members]
    inside = [representative(system, points) for points in components]
    words = stabilities(system, components, [dimension for _, dimension in inside], towards)
    rows = []
    for mine, (x, dimension), stability in zip(members, inside, words, strict=True):
        images = atlas.group.elements @ x
        point = images[np.lexsort(np.round(images, 6).T[::-1])[-1]]
        row = FixedPoint(
            point=jax.tree.map(np.asarray, system.stats(point)),
            eigenvalues=spectra(system, point[None])[0][0],
            dimension=dimension,
            stability=stability,
            copies=int(np.unique(labels[:, mine]).size),
            residual=float(np.linalg.norm(linearised(system, point[None])[0])),
            risk=float(_risk(system, point)),
            found=int(mine[hits.searches].sum()),
            basin=hits.basin(mine),
        )
        rows.append(row)
    rows.sort(key=lambda row: (ORDER.index(row.stability), row.risk))
    name = getattr(problem, "name", type(problem).__name__)
    return FixedPoints(tuple(rows), name, atlas.group.order, len(hits.searches), hits.elsewhere())


def _batch(problem: Problem, start: Start | PyTree, count: int, seed: int) -> PyTree:
    """Statistics of a law, or as they are given, runs first."""
    start = as_start(start)
    given = getattr(start, "stats", None)
    if given is not None:
        name, axes = next(iter(type(given).dims.items()))
        count = getattr(given, name).shape[0] if np.ndim(getattr(given, name)) > len(axes) else 1
    return start.sample(problem, runs=count, seed=seed)


def _ends(system: System, batch: PyTree) -> np.ndarray:
    """The fixed points where the flow from statistics, runs first, comes to rest."""
    end = settle(system, system.rows(batch))
    roots = roots_near(system, end)
    return roots.x[roots.found & (np.linalg.norm(roots.x - end, axis=1) < AT_REST * (1 + np.linalg.norm(end, axis=1)))]


@eqx.filter_jit
def _risk(system: System, x: Float[Array, " n"]) -> Float[Array, ""]:
    return system.problem.risk(system.stats(x))
