"""Optimal schedules: piecewise constant controls that minimise an objective of the ODE."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree
from scipy.optimize import minimize

from sgdlimits.analysis.control_path import (
    ControlSchedule,
    Discretisation,
    compute_states_at_ends,
    find_control_schedules,
    interval_ends,
    value_and_gradient,
)
from sgdlimits.analysis.controls import Budget, Control, FeasibleSet, as_budgets
from sgdlimits.analysis.objective import ExitTime, Objective, as_objective
from sgdlimits.analysis.optimum import Optimum, simulate_path
from sgdlimits.checks import integer, mapping
from sgdlimits.domain import Count, Function, Positive, Seed, checked
from sgdlimits.errors import BadInput, shorten
from sgdlimits.jaxtools import jit_bound
from sgdlimits.level.condition import Exits
from sgdlimits.level.ode import ODE
from sgdlimits.problem.base import Problem
from sgdlimits.problem.over_time import check_schedules
from sgdlimits.progress import bar
from sgdlimits.run.simulate import simulate
from sgdlimits.start import Start, as_start

STEP_TOLERANCE = 1e-8
"""Largest relative error of statistics integrated with fixed steps; a larger tolerance of the problem replaces it."""
MAX_STEPS_PER_INTERVAL = 256
"""Maximum number of solver steps on each interval of time; a drift that needs more is too stiff."""
DIVERGENCE_STEPS_PER_INTERVAL = 32
"""Number of steps per interval from which a path that is not finite counts as diverging; with fewer, the steps are too long."""
TRIAL_CONSTANT_COUNT = (0.03, 0.1, 0.3, 0.7)
"""Constant values of the controls, scaled to [0, 1], from which the search for the best constants starts."""
MAX_CONSTANT_SEARCH_SHARE = 0.2
"""Largest share of the allowed gradient evaluations that the search for the best constant controls may take."""
MIN_RELATIVE_CHANGE = 1e-9
"""Relative change of the objective in one iteration at which SciPy's optimisers stop."""
RESCALING_FRACTION = 0.5
"""Fraction of its initial value below which an objective is rescaled, and its search restarted."""
LBFGS_UPDATES = 30
"""Number of updates that the approximate Hessian of the optimiser L-BFGS-B keeps."""


@checked
def optimise(
    make: Function,
    start: Start | PyTree,
    t_max: Positive,
    controls: Annotated[Mapping[str, Control], mapping],
    objective: Annotated[str | Callable | Exits | None, as_objective] = None,
    constraints: Annotated[Budget | Sequence[Budget], as_budgets] = (),
    *,
    starts: Annotated[int, integer(at_least=1)] = 3,
    gradients: Count = 200,
    seed: Seed = 0,
    progress: bool = True,
) -> Optimum:
    r"""Find the schedules that minimise an objective of the ODE's path, with the exact gradient of the discretised ODE.

    Each control is constant on equal pieces of [0, t_max], and the objective is a function of all piece values. Its gradient is
    computed by reverse-mode differentiation of the steps of a Runge-Kutta method of order 8; SciPy minimises with L-BFGS-B, or
    with SLSQP if there are budgets.

    Parameters
    ----------
    make : function from schedules of the controls to a problem, such as ``lambda lr: sl.presets.committee(lr=lr)``
    start : statistics, or a law of starts from which one start is drawn with `seed`
    t_max : end time, in samples per dimension
    controls : dict from names of arguments of `make` to `Control`
    objective : None for the final risk; "exit" or ``exits(T)`` for the time to leave a plateau; a JAX function of (problem,
        stats) at the end; or a JAX function of (problem, path, t), where `path` has the statistics at the ends of the pieces,
        times first, and `t` these times
    constraints : `Budget` of any of the controls
    starts : number of initial schedules of the search: the best constants, a decay around them, and random schedules
    gradients : largest number of gradients that are computed
    seed : seed of the draw, and of random starts of the search
    progress : whether to show a progress bar

    Returns
    -------
    An `Optimum`: ``value``, ``baseline`` (value of the best constants), ``controls``, ``problem``, ``dataset``, ``values`` (one
    for each start of the search), ``certificate`` (norm of the projected gradient), ``costate``, ``error``, and
    ``check(d, runs)``, which compares with the exact chain at finite d. After Ctrl-C it has the best schedules so far.

    Notes
    -----
    The optimum is a local one, for the ODE from one initial point. Without an exit before `t_max` the objective "exit" is t_max
    times one plus the missing share of the descent of the risk.

    >>> import sgdlimits as sl
    >>> make = lambda lr: sl.presets.single_index("linear", lr=lr, noise=0.5, sphere=False)
    >>> control = sl.Control(pieces=6, low=0.0, high=1.5)
    >>> best = sl.optimise(make, sl.FixedInit(0.0), 6.0, {"lr": control}, progress=False)
    >>> round(best.value, 4), round(best.baseline, 4), best.controls["lr"].values.round(2).tolist()
    (0.3201, 0.332, [0.73, 0.58, 0.45, 0.36, 0.29, 0.24])

    See Also
    --------
    sgdlimits.flow : the differentiable flow of the ODE
    sgdlimits.Steps : the schedules
    """
    feasible = FeasibleSet(controls, as_budgets("constraints", constraints), t_max)
    goal = as_objective("objective", objective)
    _check_controls(make, feasible)
    discretisation = _discretise(make, start, feasible, seed)
    search = _Search(discretisation, goal, feasible, gradients, progress)
    values: list[float] = []
    interrupted = False
    try:
        constants = search.find_best_constants()
        for z in _draw_search_starts(feasible, constants, starts, seed):
            values.append(search.minimise_objective(z, starts - len(values)))
        search.refine_steps()
    except KeyboardInterrupt:
        if search.baseline is None:
            raise
        interrupted = True
    finally:
        search.bar.close()
    return _build_optimum(make, search, discretisation, values or [search.best[0]], interrupted)


def _check_controls(make: Callable, feasible: FeasibleSet) -> None:
    """Raise `BadInput` unless `make` returns a problem when all controls are at the lower bounds, and at the upper bounds."""
    names = list(feasible.controls)
    try:
        inspect.signature(make).bind(**dict.fromkeys(names))
    except TypeError as reason:
        raise BadInput(
            f"make cannot be called with the controls {', '.join(names)}: {reason}. Give its arguments these names."
        ) from None
    except ValueError:  # a builtin without a signature
        pass
    for level, word in ((0.0, "lower"), (1.0, "upper")):
        steps = feasible.steps(np.full(len(feasible.low), level))
        try:
            check_schedules(make_problem(make, steps), feasible.t_max)
        except BadInput as reason:
            raise BadInput(f"with every control at its {word} bound: {reason}") from None


def make_problem(make: Callable, schedules: Mapping[str, Any]) -> Problem:
    """Return the problem that a user's function returns for given schedules; raise `BadInput` if it is not a problem."""
    problem = make(**schedules)
    if not isinstance(problem, Problem):
        raise BadInput(f"make must return a problem; got {shorten(problem)}. Return, for instance, presets.committee(lr=lr).")
    return problem


def _discretise(make: Callable, start: Any, feasible: FeasibleSet, seed: int) -> Discretisation:
    """Return the discretised control problem: the problem with replaceable controls, its initial statistics and intervals."""
    middle = feasible.values(feasible.constant(feasible.largest_constants / 2))
    knobs = {name: ControlSchedule(name, feasible.times(name), middle[a:b]) for name, a, b in feasible.slices}
    problem = make_problem(make, knobs).limit
    if ignored := [name for name in knobs if name not in find_control_schedules(problem)]:
        raise BadInput(
            f"the problem does not depend on {', '.join(ignored)}. In make, pass the control itself to the problem, "
            "or leave it out of controls."
        )
    point = as_start(start).one(problem, seed=seed)
    problem.coordinates.check_one(point)
    return Discretisation(problem.numerics.refined(point), point, interval_ends(problem, feasible.t_max), feasible.slices)


def _draw_search_starts(feasible: FeasibleSet, constants: np.ndarray, number: int, seed: int) -> list[np.ndarray]:
    """Return scaled starts of the search: the best constants, a decay around them, and random values in blocks of pieces."""
    random = np.random.default_rng(seed)
    found = [feasible.constant(constants)]
    ramps = [(np.arange(b - a) + 0.5) / (b - a) for _, a, b in feasible.slices]
    decay = [level * (1.5 - ramp) for level, ramp in zip(constants, ramps, strict=True)]
    found.append(np.concatenate(decay))
    while len(found) < number:
        blocks = [random.uniform(0, 1, 4)[(4 * ramp).astype(int)] for ramp in ramps]
        # half way to the constants: paths under extreme controls may diverge
        found.append((found[0] + np.concatenate(blocks)) / 2)
    return [feasible.project(z) for z in found[:number]]


class _GradientLimitReached(Exception):
    """Exception for a search that has reached its limit on the number of gradients."""


class _Search:
    """Minimisation over piece values scaled to [0, 1], which counts gradients and stores the best feasible point."""

    def __init__(
        self, discretisation: Discretisation, goal: Objective, feasible: FeasibleSet, gradients: int, progress: bool
    ) -> None:
        self.discretisation, self.goal, self.feasible, self.gradients = discretisation, goal, feasible, gradients
        self.tolerance = max(STEP_TOLERANCE, discretisation.problem.numerics.tolerance)
        self.march = jit_bound(compute_states_at_ends, discretisation, fast_compile=True)
        self.evaluations, self.limit, self.spent = 0, gradients, False
        self.best: tuple[float, np.ndarray] = (np.inf, np.zeros(0))
        self.worst, self.scale, self.converged = 0.0, 1.0, True
        self.baseline: tuple[float, np.ndarray] | None = None
        self.bar = bar(total=gradients, desc=f"optimise {goal.title}", unit="gradient", disable=not progress)
        trials = [feasible.constant(share * feasible.largest_constants) for share in TRIAL_CONSTANT_COUNT]
        self.steps_per_interval = 1
        self._compile(max(self.count_steps_needed(z) for z in trials))

    def _compile(self, steps_per_interval: int) -> None:
        """Compile the objective of the control problem and its gradient, for a number of steps per interval."""
        self.steps_per_interval = steps_per_interval
        self.gradient = jit_bound(value_and_gradient, self.discretisation, self.goal, steps_per_interval, fast_compile=True)

    def count_steps_needed(self, z: np.ndarray) -> int:
        """Return the number of steps per interval with which the path at the scaled vector z is accurate to the tolerance.

        If the path diverges, the present number is returned.
        """
        vector, steps = jnp.asarray(self.feasible.values(z)), self.steps_per_interval
        coarse = np.asarray(self.march(vector, jnp.asarray(steps)))
        while steps <= MAX_STEPS_PER_INTERVAL:
            fine = np.asarray(self.march(vector, jnp.asarray(2 * steps)))
            with np.errstate(invalid="ignore"):
                error = np.max(np.abs(fine - coarse) / np.maximum(np.abs(fine), 1.0))
            if error <= self.tolerance:
                return steps
            steps, coarse = 2 * steps, fine
            if steps > DIVERGENCE_STEPS_PER_INTERVAL and not np.isfinite(coarse).all():
                return self.steps_per_interval
        raise BadInput(
            f"the ODE is too stiff for {MAX_STEPS_PER_INTERVAL} steps per piece. Give Control a smaller high= or more pieces=."
        )

    def evaluate_objective(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the objective and its gradient at the scaled vector z; if the path diverges, a large value and zeros."""
        if self.evaluations >= self.limit:
            raise _GradientLimitReached
        kicks = np.zeros((len(self.discretisation.interval_ends) - 1, self.size))
        value, (slope, _) = self.gradient(jnp.asarray(self.feasible.values(z)), kicks)
        self.evaluations += 1
        value, slope = float(value), np.asarray(slope) * self.feasible.width
        self.converged = bool(np.isfinite(value) and np.isfinite(slope).all())
        if not self.converged:  # a value that the line search will not accept
            return 10 * self.worst + 1.0, np.zeros_like(z)
        self.worst = max(self.worst, abs(value))
        if value < self.best[0] and np.abs(self.feasible.project(z) - z).max() < 1e-9:
            self.best = (value, self.feasible.project(z))
            self.bar.set_postfix_str(f"{value:.5g}", refresh=False)
        self.bar.update()
        return value, slope

    @property
    def size(self) -> int:
        """Number of entries of the statistics as one vector."""
        return sum(np.size(leaf) for leaf in jax.tree.leaves(self.discretisation.start))

    def find_best_constants(self) -> np.ndarray:
        """Return the best constant controls, scaled to [0, 1], and store the objective at these as the baseline."""
        caps, count = self.feasible.largest_constants, len(self.feasible.controls)
        self.limit = max(int(MAX_CONSTANT_SEARCH_SHARE * self.gradients), 2 * len(TRIAL_CONSTANT_COUNT))
        reduce = np.array([np.eye(count)[i] for i, (_, a, b) in enumerate(self.feasible.slices) for _ in range(a, b)])
        found = []

        def of_levels(levels):
            value, slope = self.evaluate_objective(self.feasible.constant(levels))
            if self.converged:  # a path that diverges has no value that could be the smallest
                found.append((value, levels.copy()))
            return value / self.scale, reduce.T @ slope / self.scale

        try:
            for share in TRIAL_CONSTANT_COUNT:
                of_levels(share * caps)
            if not found:
                raise BadInput("the ODE diverges at all constant controls that were tried. Give Control a smaller high=.")
            best = min(found, key=lambda each: each[0])
            self.scale = max(abs(best[0]), 1e-300)
            minimize(of_levels, best[1], jac=True, method="L-BFGS-B", bounds=[(0.0, cap) for cap in caps],
                     options={"ftol": MIN_RELATIVE_CHANGE, "gtol": 1e-8})  # fmt: skip
        except _GradientLimitReached:
            pass
        value, levels = min(found, key=lambda each: each[0])
        if isinstance(self.goal, ExitTime) and value > self.feasible.t_max:
            raise BadInput(
                f"no constant controls leave the plateau before t_max = {self.feasible.t_max:g}. "
                "Give a larger t_max=, a larger high=, or a start further from the plateau."
            )
        self.baseline = (value, levels)
        return levels

    def minimise_objective(self, z: np.ndarray, searches_left: int) -> float:
        """Minimise from the scaled vector z, and return the smallest objective found.

        The remaining gradients are divided equally over the `searches_left` searches still to run, this one included.
        """
        self.limit = self.evaluations + (self.gradients - self.evaluations) // searches_left
        before, self.best = self.best, (np.inf, z)
        try:
            while True:
                value, _ = self.evaluate_objective(z)
                if not np.isfinite(self.best[0]):  # the path diverges: go half way to the best point
                    z = (z + before[1]) / 2
                    continue
                self.scale = max(abs(value), 1e-300)
                self._minimise_by_scipy(z)
                if not 0 < self.best[0] < RESCALING_FRACTION * self.scale:
                    break
                z = self.best[1]
        except _GradientLimitReached:
            self.spent = True
        finally:
            reached = self.best[0]
            self.best = min(before, self.best, key=lambda each: each[0])
        return reached

    def _minimise_by_scipy(self, z: np.ndarray) -> None:
        """Minimise by SciPy from the scaled vector z, and store the result in `best`."""
        scaled = lambda z: tuple(each / self.scale for each in self.evaluate_objective(z))
        bounds = [(0.0, 1.0)] * len(z)
        if budgets := self.feasible.inequalities():
            options = {"ftol": MIN_RELATIVE_CHANGE, "maxiter": self.gradients}
            minimize(scaled, z, jac=True, method="SLSQP", bounds=bounds, constraints=budgets, options=options)
            return
        limits = {"maxfun": self.gradients, "maxiter": self.gradients}
        options = {"ftol": MIN_RELATIVE_CHANGE, "gtol": 1e-8, "maxcor": LBFGS_UPDATES, **limits}
        minimize(scaled, z, jac=True, method="L-BFGS-B", bounds=bounds, options=options)

    def refine_steps(self) -> None:
        """Increase the number of steps per interval if the optimum needs more, and search again from the optimum."""
        while (needed := self.count_steps_needed(self.best[1])) > self.steps_per_interval:
            self._compile(needed)
            z, self.best = self.best[1], (np.inf, self.best[1])
            self.gradients += self.gradients // 4
            self.minimise_objective(z, 1)


def _build_optimum(
    make: Callable, search: _Search, discretisation: Discretisation, values: Sequence[float], interrupted: bool
) -> Optimum:
    """Return the `Optimum` with its certificate, its costate, and the ODE solved with error control."""
    feasible, goal = search.feasible, search.goal
    assert search.baseline is not None
    z, base = search.best[1], feasible.constant(search.baseline[1])
    kicks = np.zeros((len(discretisation.interval_ends) - 1, search.size))
    (value, (slope, costate)), (baseline, (base_slope, _)) = (
        search.gradient(jnp.asarray(feasible.values(each)), kicks) for each in (z, base)
    )
    # relative to the objective at the best constants, so that the unit of the objective does not matter
    unit = feasible.width / max(abs(float(baseline)), 1e-300)
    norms = [feasible.projected_gradient(each, np.asarray(g) * unit) for each, g in ((z, slope), (base, base_slope))]
    controls = feasible.steps(z)
    constants = {name: float(feasible.values(base)[a]) for name, a, _ in feasible.slices}
    problem = make_problem(make, controls)
    solved = simulate_path(problem, ODE(), discretisation.start, discretisation.interval_ends, goal)
    plain = goal.until is None
    unravel = ravel_pytree(jax.tree.map(jnp.asarray, discretisation.start))[1]
    return Optimum(
        value=float(value),
        baseline=float(baseline),
        controls=controls,
        constants=constants,
        problem=problem,
        baseline_problem=make_problem(make, constants),
        dataset=solved
        if plain
        else simulate(
            problem, ODE(), discretisation.start, t_max=feasible.t_max, save=discretisation.interval_ends, progress=False
        ),
        start=discretisation.start,
        values=tuple(values),
        certificate=norms[0],
        certificate_of_constants=norms[1],
        costate=jax.tree.map(np.asarray, jax.vmap(unravel)(costate)),
        t=discretisation.interval_ends[:-1],
        evaluations=search.evaluations,
        error=abs(float(goal.evaluate_runs(problem, solved)[0]) - float(value)),
        complete=not (interrupted or search.spent),
        interrupted=interrupted,
        objective=goal,
        ends=discretisation.interval_ends,
    )
