"""The function `fixed_points`, which searches for the fixed points of a problem's ODE in stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import numpy as np
import scipy
from jaxtyping import PyTree

from sgdlimits.analysis.fixed_points.components import RootGraph
from sgdlimits.analysis.fixed_points.result import FixedPoint, FixedPoints, SearchInterrupted, estimate_proportion
from sgdlimits.analysis.fixed_points.roots import Roots, find_roots_from_starts, flow_to_rest, refine_roots
from sgdlimits.analysis.fixed_points.stability import Stability, find_root_of_largest_dimension, stability_of
from sgdlimits.analysis.fixed_points.symmetry import SymmetryGroup, check_symmetries, find_symmetries
from sgdlimits.analysis.fixed_points.system import DEFAULT_STARTS, DriftSystem, OutOfTime, SearchMonitor
from sgdlimits.checks import memory_bounded_count
from sgdlimits.domain import NotNegative, Positive, Seed, Size, checked
from sgdlimits.problem.base import Problem
from sgdlimits.problem.over_time import evaluate_at_time_if_needed
from sgdlimits.size import check_memory
from sgdlimits.start import Start, as_start
from sgdlimits.statistics.blocks import block_factor
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import count_runs, repeat_run, select_run

FLOW_BLOCKS_PER_SEARCH, COSTLY_FLOW_BLOCKS_PER_SEARCH = 12, 6
"""Numbers of blocks of ODE steps before a search for roots, for cheap and for costly drifts."""
COSTLY_FLOW_INTERVAL = 4
"""For costly drifts, one chunk of starts in this many is integrated along the ODE before the search for roots."""
# order of the rows of the table
STABILITY_ORDER = ("stable", "neutral", "unstable", "unknown")
"""Kinds of stability of fixed points, in the order in which the printed table lists them."""
MAX_REST_DISTANCE = 0.2
"""Largest distance, relative to 1 plus the norm, of the flow's end from the fixed point to which it is assigned. The bound is
generous, as the flow slides along kinks."""
STARTS_PER_SYMMETRIC_START = 16
"""One start in this many gives a further start: its mean with its image under a symmetry."""
START_WEIGHT_SCALES = (0.3, 1.0, 2.0)
"""Factors of the problem's initial weight scale; each start of a search has one of these, drawn at random."""
DENSE_START_SHARE = 0.3
"""Share of the starts of a search in which no unit, direction or orthogonal component is set to zero."""


@checked
def fixed_points(
    problem: Problem,
    *,
    starts: Start | PyTree | None = None,
    count: Annotated[int, memory_bounded_count(16)] | None = None,
    symmetries: str | Sequence[Callable[[PyTree], PyTree]] = "auto",
    basins: Start | PyTree | None = None,
    runs: Size = 400,
    seed: Seed = 0,
    corrector: bool = True,
    t: NotNegative | None = None,
    seconds: Positive | None = None,
    progress: bool = True,
) -> FixedPoints:
    r"""Find the fixed points of a problem's ODE: isolated points and manifolds, their eigenvalues, stability and basins.

    From each start MINPACK's methods (SciPy) search for a root of the drift; further searches, by Levenberg-Marquardt steps,
    begin at the starts and at the states to which the flow of the ODE carries them. A search succeeds if the drift is zero up
    to rounding and weights with these statistics exist. Two roots belong to one component if the segment between them projects
    onto fixed points without a jump. A component is unstable if one of its points has an eigenvalue with positive real part, or
    if the flow from a small displacement does not return. The answer is numerical: a component that no search meets is missing,
    and the result's `unseen` estimates the probability of that.

    Parameters
    ----------
    problem : any problem
    starts : starts of the searches: a law such as `RandomInit(d)`, or statistics, runs first. None draws random weights of
        several sizes, in most of which some units, or their overlaps with fixed directions, are zero
    count : number of random starts; up to three searches begin from each start. None draws 256, fewer for costly drifts
    symmetries : "auto" finds signed permutations of units and fixed directions under which the drift is equivariant; () uses
        none; or generators of a group, linear functions from statistics to statistics
    basins : a law of random starts, or statistics, runs first, from which the flow is followed to fixed points
    runs : number of starts drawn from the law `basins`
    seed : an integer; the same seed gives the same answer
    corrector : whether the drift contains the effect of the step size, as in `ODE`
    t : time at which schedules are evaluated, for problems with schedules
    seconds : time limit, after which the search returns what it has found; None for no limit
    progress : whether to show a progress line after a second

    Returns
    -------
    `FixedPoints`, a row for each orbit under the symmetries. After the time limit, `stopped` says which stages are missing,
    and rows that were not examined have the stability "unknown". Ctrl-C raises `SearchInterrupted`, with the table as `found`.

    Examples
    --------
    >>> import sgdlimits as sl
    >>> found = sl.fixed_points(sl.presets.phase_retrieval(lr=0.1), count=32)
    >>> [(each.copies, each.stability, round(abs(float(each.point.M[0, 0])), 6)) for each in found]
    [(2, 'stable', 1.0), (1, 'unstable', 0.0)]
    """
    problem = evaluate_at_time_if_needed(problem, t)
    watch = SearchMonitor(getattr(problem.limit, "name", type(problem).__name__), seconds, progress)
    return run_search(watch, problem, starts, count, symmetries, basins, runs, seed, corrector)


def run_search(
    watch: SearchMonitor, problem: Problem, starts: Start | PyTree | None = None, count: int | None = None,
    symmetries: str | Sequence[Callable[[PyTree], PyTree]] = "auto", basins: Start | PyTree | None = None, runs: int = 400,
    seed: int = 0, corrector: bool = True,
) -> FixedPoints:  # fmt: skip
    """Run the search of `fixed_points`, with a `SearchMonitor` that shows the progress and may end the search early."""
    problem = problem.limit
    drawn = DEFAULT_STARTS if count is None else count
    memory = ("numbers", 8 * problem.numerics.size)
    check_memory([("starts", drawn), memory], "Give a smaller count or width.")
    check_memory([("runs", 0 if basins is None else runs), memory], "Give fewer runs, or a smaller width.")
    try:
        batch = draw_starts(problem, drawn, seed) if starts is None else _make_starting_batch(problem, starts, drawn, seed)
        ends = None if basins is None else _make_starting_batch(problem, basins, runs, seed)
        check_symmetries(symmetries, jax.tree.map(lambda leaf: np.asarray(leaf)[0], batch))
        system = DriftSystem.from_batch(problem, batch, corrector, watch)
        # the coordinates of all starts also serve as directions of displacements
        x = system.flatten_batch(batch)
        system.measure_time(x[0])
        # starts given by the user are all used
        fewer = system.default_count() if count is None and not hasattr(starts, "dims") else len(x)
        group = find_symmetries(system, symmetries, x)
        symmetric = group.symmetrise(x[:fewer], STARTS_PER_SYMMETRIC_START, seed) if starts is None else x[:0]
        search = Search(system, x[:fewer], x, group, symmetric)
        try:
            watch.start_limit()
            search.run(None if ends is None else system.flatten_batch(ends))
        except OutOfTime:
            return search.build_result(watch.name, f"after {watch.seconds:g} s")
        # the table so far travels with the exception
        except KeyboardInterrupt:
            stopped = f"by Ctrl-C after {time.monotonic() - watch.begin:.0f} s"
            raise SearchInterrupted(search.build_result(watch.name, stopped)) from None
        return search.build_result(watch.name)
    finally:
        watch.stop()


class Search:
    """Search for fixed points in stages; if a stage is interrupted, the results of the earlier stages remain available.

    Parameters
    ----------
    system : the drift as a function of the free coordinates
    x : coordinates of the starts, shape (starts, n)
    towards : coordinates of statistics towards which roots are displaced
    group : the symmetries
    symmetric : coordinates of further starts, each invariant under a symmetry
    """

    def __init__(
        self,
        system: DriftSystem,
        x: np.ndarray,
        free_coordinate_directions: np.ndarray,
        group: SymmetryGroup,
        symmetric: np.ndarray,
    ) -> None:
        self.system, self.group = system, group
        self.x, self.free_coordinate_directions, self.symmetric = x, free_coordinate_directions, symmetric
        self.parts: list[Roots] = [Roots.empty(system.size)]
        self.stages = ["searches", "paths between roots", "basins", "components", "stability"]
        # an empty atlas, so that `table` works at every stage
        self.atlas = RootGraph(system, group, self.parts[0])
        self.ends: np.ndarray | None = None
        self.runs = self.searches = 0
        self.sampled: dict[int, tuple[Roots, int, int]] = {}
        self.stability: dict[int, Stability] = {}

    def run(self, starts: np.ndarray | None) -> None:
        """Run all stages of the search in order; the attribute `stages` lists those that are not finished.

        Basins of attraction are computed from the states `starts`, or not at all if it is None.
        """
        stages = (
            self._search_roots,
            self._connect,
            lambda: self._find_basins(starts),
            self._sample_components,
            self._decide_stability,
        )
        for stage in stages:
            stage()
            self.stages.pop(0)

    def _search_roots(self) -> None:
        """Search for roots of the drift from the starts, from symmetric starts, and from the states to which the ODE leads."""
        system, size = self.system, self.system.chunk
        blocks = COSTLY_FLOW_BLOCKS_PER_SEARCH if system.costly else FLOW_BLOCKS_PER_SEARCH
        for begin in range(0, len(self.x), size):
            system.watch.show_stage("searches from start", begin + 1, len(self.x))
            x = self.x[begin : begin + size]
            self._add_roots(find_roots_from_starts(system, x))
            if not system.costly:
                self._add_roots(refine_roots(system, x))
            if not system.costly or begin % COSTLY_FLOW_INTERVAL == 0:
                self._add_roots(refine_roots(system, flow_to_rest(system, x, blocks)))
        if len(self.symmetric):
            system.watch.show_stage("searches from symmetric starts")
            self._add_roots(refine_roots(system, flow_to_rest(system, self.symmetric, blocks)))

    def _add_roots(self, roots: Roots) -> None:
        """Add the end points of searches at which the drift is zero to the list of roots."""
        self.parts.append(roots.select(roots.found))
        self.searches += int(roots.found.sum())

    def _connect(self) -> None:
        """Identify roots that are images of each other under a symmetry, and connect the roots of one component by paths."""
        self.system.watch.show_stage("paths between roots")
        self.atlas = RootGraph(self.system, self.group, Roots.join(self.parts))
        self.atlas.connect(self.free_coordinate_directions)

    def _find_basins(self, starts: np.ndarray | None) -> None:
        """Integrate the ODE from each start, and find the component of fixed points at which it ends."""
        if starts is None:
            return
        self.system.watch.show_stage("basins")
        end = flow_to_rest(self.system, starts)
        roots = refine_roots(self.system, end)
        # a root far from the end of the flow is not what the flow approaches
        near = np.linalg.norm(roots.x - end, axis=1) < MAX_REST_DISTANCE * (1 + np.linalg.norm(end, axis=1))
        roots = roots.select(roots.found & near)
        new = self.atlas.locate(roots.x) < 0
        # the flow found components that no search had met
        if new.any():
            self.parts.append(roots.select(new))
            self._connect()
        self.ends, self.runs = self.atlas.locate(roots.x), len(starts)

    def _orbit_masks(self) -> dict[int, np.ndarray]:
        """Return, for each orbit of connected components under the symmetries, the mask of the roots that it contains."""
        orbits = self.atlas.component_labels().min(0)
        return {int(orbit): orbits == orbit for orbit in np.unique(orbits)}

    def _sample_components(self) -> None:
        """Collect roots of each component, including some in its interior, and measure its dimension."""
        labels, members = self.atlas.component_labels(), self._orbit_masks()
        for i, (orbit, mine) in enumerate(members.items()):
            self.system.watch.show_stage("components", i + 1, len(members))
            roots = Roots.join([self.atlas.roots.select(mine), self.atlas.interior_roots(labels, int(mine.argmax()))])
            self.sampled[orbit] = roots, *find_root_of_largest_dimension(self.system, roots)

    def _decide_stability(self) -> None:
        """Decide the stability of each orbit of components under the symmetries."""
        for i, (orbit, (roots, _, dimension)) in enumerate(self.sampled.items()):
            self.system.watch.show_stage("stability of components", i + 1, len(self.sampled))
            self.stability[orbit] = stability_of(self.system, roots, dimension, self.free_coordinate_directions)

    def build_result(self, name: str, stopped: str = "") -> FixedPoints:
        """Return the results so far as a table, with one row for each orbit of components under the symmetries.

        Parameters
        ----------
        name : name of the problem
        stopped : when the search was cut off; empty if it finished
        """
        self.system.watch.stop()
        # interrupted before roots were connected
        if not len(self.atlas.owner):
            self.atlas = RootGraph(self.system, self.group, Roots.join(self.parts))
        rows = [self._orbit_row(orbit, mine) for orbit, mine in self._orbit_masks().items()]
        # stable ones first, and by risk among equals
        rows.sort(key=lambda row: (STABILITY_ORDER.index(row.stability), row.risk))
        missing = f"{stopped}, before the end of: {', '.join(self.stages)}" if stopped else ""
        elsewhere = None if self.ends is None else estimate_proportion(self.runs - int((self.ends >= 0).sum()), self.runs)
        return FixedPoints(tuple(rows), name, self.group.order, self.searches, elsewhere, missing)

    def _orbit_row(self, orbit: int, mine: np.ndarray) -> FixedPoint:
        """Return the row of the table for an orbit of components, whose roots are those in the mask `mine`."""
        roots, at, dimension = self.sampled.get(orbit, (self.atlas.roots.select(mine), 0, -1))
        values, zero = (leaf[at] for leaf in roots.spectra)
        images = self.group.elements @ roots.x[at]
        # round before comparing; + 0.0 makes -0.0 equal to 0.0
        images = images[np.unique(np.round(images, 6) + 0.0, axis=0, return_index=True)[1]]
        # the largest image in lexicographic order, so that most overlaps are positive
        point = images[-1]
        stats = select_run(self.system.unflatten_rows(point[None]))
        return FixedPoint(
            point=stats,
            eigenvalues=values,
            dimension=int((np.abs(values) < zero).sum()) if dimension < 0 else dimension,
            stability=self.stability.get(orbit, "unknown"),
            copies=int(np.unique(self.atlas.component_labels()[:, mine]).size),
            residual=float(roots.residual[at]),
            risk=float(self.system.problem.risk(stats)),
            # roots after the first `searches` come from basins
            found=int(mine[self.atlas.owner[: self.searches]].sum()),
            basin=None if self.ends is None else estimate_proportion(int(mine[self.ends[self.ends >= 0]].sum()), self.runs),
            images=self.system.unflatten_rows(images),
        )


def _make_starting_batch(problem: Problem, start: Start | PyTree, count: int, seed: int) -> PyTree:
    """Draw `count` statistics from a start that is a law, or return the statistics of a start that gives them; runs first."""
    start = as_start(start)
    given = getattr(start, "stats", None)
    if given is not None:
        count = count_runs(given) or 1
        problem.coordinates.fits(given if count_runs(given) is None else jax.tree.map(lambda leaf: np.asarray(leaf)[0], given))
    return start.sample(problem, runs=count, seed=seed)


def draw_starts(problem: Problem, count: int, seed: int) -> PyTree:
    """Draw starts for searches: statistics of random weights at several scales, most of them with some components set to zero.

    Saddles lie where units are zero, or orthogonal to some of the fixed directions, or within their span. These subspaces are
    invariant for many problems, so that a search that starts in one stays there.
    """
    rng, directions = np.random.default_rng(seed), problem.directions
    p, k, law = directions.width, directions.fixed, directions.initial
    on_sphere, trained = problem.sphere, problem.trains_second
    # in each block of inputs, the rows of B are the fixed directions in an orthonormal frame
    gram = np.asarray(directions.gram)
    B = block_factor(gram if gram.ndim == 3 else gram[None]) if directions.sizes else np.linalg.cholesky(gram)[None]
    blocks = len(B)
    scale = float(law.scale) * (np.ones((count, 1, 1)) if on_sphere else rng.choice(START_WEIGHT_SCALES, (count, 1, 1)))
    inside, outside = rng.normal(size=(count, p, blocks * k)), rng.normal(size=(count, p, blocks * p))
    # masks of units, of their overlaps with fixed directions, and of their orthogonal components
    dense = rng.random((count, 1, 1)) < DENSE_START_SHARE
    on = dense | (rng.random((count, p, 1)) < rng.uniform(0.3, 1, (count, 1, 1)))
    sees = dense | (rng.random((count, p, blocks * k)) < rng.uniform(0.5, 1, (count, 1, 1)))
    leaves = dense | (rng.random((count, 1, 1)) < 0.5)
    frame = scipy.linalg.block_diag(*B)
    weights = np.concatenate([inside * sees @ frame, outside * leaves], axis=2)
    if on_sphere:
        # a unit of norm zero has no direction on the sphere
        blank = ~weights.any(axis=2, keepdims=True)
        weights = np.where(blank, np.concatenate([inside @ frame, outside], axis=2), weights)
        weights *= scale / np.linalg.norm(weights, axis=2, keepdims=True)
    else:
        weights *= scale * on / np.sqrt(blocks * (k + p))

    def draw_scalars(shape: tuple[int, ...]) -> np.ndarray:
        """Draw random scalars; in arrays with one scalar per unit, those of units that were set to zero are zero."""
        each = (count, *(1 for _ in shape))
        alive = on.reshape(count, *shape[:1], *(1 for _ in shape[1:])) if shape[:1] == (p,) else np.ones(each, bool)
        return scale.reshape(each) * rng.normal(size=(count, *shape)) * alive

    if directions.scalars is None:
        a: Any = draw_scalars((p,)) if trained else np.full((count, p), float(law.second))
    else:
        drawn = {name: draw_scalars(np.shape(directions.scalars[name])) for name in directions.trained}
        a = {**repeat_run(directions.scalars, count), **drawn}
    seen, unseen = np.split(weights, [blocks * k], axis=2)
    by_block = lambda leaf: np.moveaxis(leaf.reshape(count, p, blocks, -1), 2, 1)
    own = np.concatenate([by_block(seen), by_block(unseen)], axis=3)
    M, Q = by_block(seen) @ np.swapaxes(B, 1, 2), own @ own.swapaxes(2, 3)
    if not directions.sizes:
        M, Q = M[:, 0], Q[:, 0]
    return problem.coordinates.from_overlaps(Overlaps(a, M, Q))
