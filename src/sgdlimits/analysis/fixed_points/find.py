"""`fixed_points`: the fixed points of a problem's ODE."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import numpy as np
from jaxtyping import PyTree

from sgdlimits.analysis.fixed_points.components import Atlas
from sgdlimits.analysis.fixed_points.result import FixedPoint, FixedPoints, SearchInterrupted, share
from sgdlimits.analysis.fixed_points.roots import Roots, roots_from, roots_near, settle
from sgdlimits.analysis.fixed_points.stability import Stability, representative, stability_of
from sgdlimits.analysis.fixed_points.symmetry import SymmetryGroup, check_symmetries, find_symmetries
from sgdlimits.analysis.fixed_points.system import STARTS, OutOfTime, System, Watch
from sgdlimits.checks import sized
from sgdlimits.domain import NotNegative, Positive, Seed, Size, checked
from sgdlimits.problem.base import Problem
from sgdlimits.problem.over_time import fix_time
from sgdlimits.size import check_memory
from sgdlimits.start import Start, as_start
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import take_run, repeat_run, count_runs

SEARCH_BLOCKS, FEW_BLOCKS = 12, 6
EVERY = 4
"""The flow carries every fourth start, and not as far, where drifts are costly."""
ORDER = ("stable", "neutral", "unstable", "unknown")
AT_REST = 0.2
"""A flow has come to rest where a fixed point is this close, relative to 1 and its size; sliding along kinks needs the room."""
SYMMETRIC_EVERY = 16
"""One start in this many is also made symmetric, as the mean of itself and its image."""
SCALES = (0.3, 1.0, 2.0)
DENSE = 0.3
"""The share of starts in which nothing is switched off."""


@checked
def fixed_points(
    problem: Problem,
    *,
    starts: Start | PyTree | None = None,
    count: Annotated[int, sized(16)] | None = None,
    symmetries: str | Sequence[Callable[[PyTree], PyTree]] = "auto",
    basins: Start | PyTree | None = None,
    runs: Size = 400,
    seed: Seed = 0,
    corrector: bool = True,
    t: NotNegative | None = None,
    seconds: Positive | None = None,
    progress: bool = True,
) -> FixedPoints:
    r"""The fixed points of a problem's ODE: isolated points and manifolds, their eigenvalues, stability and basins.

    Searches go by MINPACK's methods (SciPy) from each start, and by Levenberg's and Marquardt's, for many points at once, from
    the starts and from where the flow carries them. A search that succeeds ends where the drift is zero to rounding
    and weights with such statistics exist. Two roots belong to one component where the segment between them projects onto fixed
    points without a jump. A component is unstable where a point of it has a growing eigenvalue, or a small displacement leads
    away for good. This is a numerical answer: a component that no search meets is missing, and `unseen` estimates how likely
    that is.

    Parameters
    ----------
    problem : any problem
    starts : where searches start: a law such as `RandomInit(d)`, or statistics, runs first. None draws random weights of
        several sizes, in most of which units, or what they see of the fixed directions, are switched off
    count : how many starts are drawn; up to three searches begin from each. None draws 256, fewer where drifts are costly
    symmetries : "auto" finds signed permutations of units and fixed directions that leave the drift as it is; () uses none;
        or generators of a group, functions from statistics to statistics that are linear
    basins : a law of random starts, or statistics, runs first, that the flow carries to fixed points
    runs : how many such starts are drawn
    seed : a whole number; the same seed gives the same answer
    corrector : whether the drift contains the effect of the step size, as in `ODE`
    t : the time, for a problem with schedules, whose values there are then held
    seconds : the search ends after so many, at the next point that is finished, with what it has found; None sets no limit
    progress : whether to show what is being done when it takes more than a second

    Returns
    -------
    `FixedPoints`, a row for each orbit under the symmetries. Where the time was over, `stopped` says what is missing, and
    rows that were not examined have the stability "unknown". Ctrl-C raises `SearchInterrupted`, which has it as `found`.

    Examples
    --------
    >>> import sgdlimits as sl
    >>> found = sl.fixed_points(sl.presets.phase_retrieval(lr=0.1), count=32)
    >>> [(each.copies, each.stability, round(abs(float(each.point.M[0, 0])), 6)) for each in found]
    [(2, 'stable', 1.0), (1, 'unstable', 0.0)]
    """
    problem = fix_time(problem, t)
    watch = Watch(getattr(problem.limit, "name", type(problem).__name__), seconds, progress)
    return search_with(watch, problem, starts, count, symmetries, basins, runs, seed, corrector)


def search_with(
    watch: Watch, problem: Problem, starts: Start | PyTree | None = None, count: int | None = None,
    symmetries: str | Sequence[Callable[[PyTree], PyTree]] = "auto", basins: Start | PyTree | None = None, runs: int = 400,
    seed: int = 0, corrector: bool = True,
) -> FixedPoints:  # fmt: skip
    """`fixed_points`, with a watch of one's own that says when the search ends."""
    problem = problem.limit
    drawn = STARTS if count is None else count
    numbers = ("numbers", 8 * problem.numerics.size)
    check_memory([("starts", drawn), numbers], "Give a smaller count or width.")
    check_memory([("runs", 0 if basins is None else runs), numbers], "Give fewer runs, or a smaller width.")
    try:
        batch = draw_starts(problem, drawn, seed) if starts is None else _batch(problem, starts, drawn, seed)
        ends = None if basins is None else _batch(problem, basins, runs, seed)
        check_symmetries(symmetries, jax.tree.map(lambda leaf: np.asarray(leaf)[0], batch))
        system = System.of(problem, batch, corrector, watch)
        x = system.rows(batch)
        system.time(x[0])
        fewer = system.starts() if count is None and not hasattr(starts, "dims") else len(x)
        group = find_symmetries(system, symmetries, x)
        alike = group.halfway(x[:fewer], SYMMETRIC_EVERY, seed) if starts is None else x[:0]
        search = Search(system, x[:fewer], x, group, alike)
        try:
            watch.arm()
            search.run(None if ends is None else system.rows(ends))
        except OutOfTime:
            return search.table(watch.name, f"after {watch.seconds:g} s")
        except KeyboardInterrupt:
            stopped = f"by Ctrl-C after {time.monotonic() - watch.begin:.0f} s"
            raise SearchInterrupted(search.table(watch.name, stopped)) from None
        return search.table(watch.name)
    finally:
        watch.stop()


class Search:
    """What was found so far: each stage adds to it, and leaves it whole where it is cut off."""

    def __init__(self, system: System, x: np.ndarray, towards: np.ndarray, group: SymmetryGroup, alike: np.ndarray) -> None:
        self.system, self.x, self.towards, self.group, self.alike = system, x, towards, group, alike
        self.parts: list[Roots] = [Roots.none(system.size)]
        self.stages = ["searches", "paths between roots", "basins", "components", "stability"]
        self.atlas = Atlas(system, group, self.parts[0])
        self.ends: np.ndarray | None = None
        self.runs = self.searches = 0
        self.inside: dict[int, tuple[Roots, int, int]] = {}
        self.words: dict[int, Stability] = {}

    def run(self, ends: np.ndarray | None) -> None:
        """All stages, one after another; those that are left are in `stages`."""
        for stage in (self._search, self._connect, lambda: self._basins(ends), self._components, self._stability):
            stage()
            self.stages.pop(0)

    def _search(self) -> None:
        system, size = self.system, self.system.chunk
        for begin in range(0, len(self.x), size):
            system.watch.stage("searches from start", begin + 1, len(self.x))
            x = self.x[begin : begin + size]
            self._keep(roots_from(system, x))
            if not system.costly:
                self._keep(roots_near(system, x))
            if not system.costly or begin % EVERY == 0:
                self._keep(roots_near(system, settle(system, x, FEW_BLOCKS if system.costly else SEARCH_BLOCKS)))
        if len(self.alike):
            system.watch.stage("searches from symmetric starts")
            self._keep(roots_near(system, settle(system, self.alike, FEW_BLOCKS if system.costly else SEARCH_BLOCKS)))

    def _keep(self, roots: Roots) -> None:
        self.parts.append(roots.at(roots.found))
        self.searches += int(roots.found.sum())

    def _connect(self) -> None:
        self.system.watch.stage("paths between roots")
        self.atlas = Atlas(self.system, self.group, Roots.join(self.parts))
        self.atlas.connect(self.towards)

    def _basins(self, starts: np.ndarray | None) -> None:
        if starts is None:
            return
        self.system.watch.stage("basins")
        end = settle(self.system, starts)
        roots = roots_near(self.system, end)
        near = np.linalg.norm(roots.x - end, axis=1) < AT_REST * (1 + np.linalg.norm(end, axis=1))
        roots = roots.at(roots.found & near)
        new = self.atlas.locate(roots.x) < 0
        if new.any():
            self.parts.append(roots.at(new))
            self._connect()
        self.ends, self.runs = self.atlas.locate(roots.x), len(starts)

    def _members(self) -> dict[int, np.ndarray]:
        """Which roots belong to each orbit of components."""
        orbits = self.atlas.labels().min(0)
        return {int(orbit): orbits == orbit for orbit in np.unique(orbits)}

    def _components(self) -> None:
        labels, members = self.atlas.labels(), self._members()
        for i, (orbit, mine) in enumerate(members.items()):
            self.system.watch.stage("components", i + 1, len(members))
            roots = Roots.join([self.atlas.roots.at(mine), self.atlas.between(labels, int(mine.argmax()))])
            self.inside[orbit] = roots, *representative(self.system, roots)

    def _stability(self) -> None:
        for i, (orbit, (roots, _, dimension)) in enumerate(self.inside.items()):
            self.system.watch.stage("stability of components", i + 1, len(self.inside))
            self.words[orbit] = stability_of(self.system, roots, dimension, self.towards)

    def table(self, name: str, stopped: str = "") -> FixedPoints:
        """One row for each orbit of components, of what there is."""
        self.system.watch.stop()
        if not len(self.atlas.owner):
            self.atlas = Atlas(self.system, self.group, Roots.join(self.parts))
        rows = [self._row(orbit, mine) for orbit, mine in self._members().items()]
        rows.sort(key=lambda row: (ORDER.index(row.stability), row.risk))
        missing = f"{stopped}, before the end of: {', '.join(self.stages)}" if stopped else ""
        elsewhere = None if self.ends is None else share(self.runs - int((self.ends >= 0).sum()), self.runs)
        return FixedPoints(tuple(rows), name, self.group.order, self.searches, elsewhere, missing)

    def _row(self, orbit: int, mine: np.ndarray) -> FixedPoint:
        roots, at, dimension = self.inside.get(orbit, (self.atlas.roots.at(mine), 0, -1))
        values, zero = (leaf[at] for leaf in roots.spectra)
        images = self.group.elements @ roots.x[at]
        images = images[np.unique(np.round(images, 6) + 0.0, axis=0, return_index=True)[1]]
        point = images[-1]
        stats = take_run(self.system.batch(point[None]))
        return FixedPoint(
            point=stats,
            eigenvalues=values,
            dimension=int((np.abs(values) < zero).sum()) if dimension < 0 else dimension,
            stability=self.words.get(orbit, "unknown"),
            copies=int(np.unique(self.atlas.labels()[:, mine]).size),
            residual=float(roots.residual[at]),
            risk=float(self.system.problem.risk(stats)),
            found=int(mine[self.atlas.owner[: self.searches]].sum()),
            basin=None if self.ends is None else share(int(mine[self.ends[self.ends >= 0]].sum()), self.runs),
            images=self.system.batch(images),
        )


def _batch(problem: Problem, start: Start | PyTree, count: int, seed: int) -> PyTree:
    """Statistics of a law, or as they are given, runs first."""
    start = as_start(start)
    given = getattr(start, "stats", None)
    if given is not None:
        count = count_runs(given) or 1
        problem.coordinates.fits(given if count_runs(given) is None else jax.tree.map(lambda leaf: np.asarray(leaf)[0], given))
    return start.sample(problem, runs=count, seed=seed)


def draw_starts(problem: Problem, count: int, seed: int) -> PyTree:
    """Statistics of random weights of several sizes, runs first; in most, parts are switched off.

    Saddles lie where units are zero, or blind to some of the fixed directions, or within the span of these. Such states are
    invariant for many problems, so that a search that starts from them stays there.
    """
    rng, directions = np.random.default_rng(seed), problem.directions
    p, k, law = directions.width, directions.fixed, directions.initial
    on_sphere, trained = problem.sphere, problem.trains_second
    B = np.linalg.cholesky(np.asarray(directions.gram))
    scale = float(law.scale) * (np.ones((count, 1, 1)) if on_sphere else rng.choice(SCALES, (count, 1, 1)))
    inside, outside = rng.normal(size=(count, p, k)), rng.normal(size=(count, p, p))
    dense = rng.random((count, 1, 1)) < DENSE
    on = dense | (rng.random((count, p, 1)) < rng.uniform(0.3, 1, (count, 1, 1)))
    sees = dense | (rng.random((count, p, k)) < rng.uniform(0.5, 1, (count, 1, 1)))
    leaves = dense | (rng.random((count, 1, 1)) < 0.5)
    weights = np.concatenate([inside * sees @ B, outside * leaves], axis=2)
    if on_sphere:
        blank = ~weights.any(axis=2, keepdims=True)
        weights = np.where(blank, np.concatenate([inside @ B, outside], axis=2), weights)
        weights *= scale / np.linalg.norm(weights, axis=2, keepdims=True)
    else:
        weights *= scale * on / np.sqrt(k + p)

    def second(shape: tuple[int, ...]) -> np.ndarray:
        """Random scalars; where there is one for each unit, those of units that are switched off are zero."""
        each = (count, *(1 for _ in shape))
        alive = on.reshape(count, *shape[:1], *(1 for _ in shape[1:])) if shape[:1] == (p,) else np.ones(each, bool)
        return scale.reshape(each) * rng.normal(size=(count, *shape)) * alive

    if directions.scalars is None:
        a: Any = second((p,)) if trained else np.full((count, p), float(law.second))
    else:
        drawn = {name: second(np.shape(directions.scalars[name])) for name in directions.trained}
        a = {**repeat_run(directions.scalars, count), **drawn}
    return problem.coordinates.from_overlaps(Overlaps(a, weights[:, :, :k] @ B.T, weights @ weights.swapaxes(1, 2)))
