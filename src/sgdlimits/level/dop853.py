"""The Runge-Kutta method DOP853 as a compiled loop: several steps of a batch of runs in one call.

Coefficients and step-size control are those of `scipy.integrate.DOP853`. A step of SciPy's class calls the drift from Python
twelve times or more, and such calls take longer than most drifts. Here a step, with its rejected attempts, is one compiled loop
over its stages. The drift occurs once in that loop, which therefore compiles in about the time of the drift alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from jaxtyping import Array, Float

MAX_BUFFERED_STEPS = 16
"""Maximum number of steps in one compiled call."""
MAX_BUFFERED_FLOATS = 2**21
"""Maximum number of floats of the interpolating polynomials that one call returns."""
CALL_SECONDS = 0.05
"""Target duration of one compiled call; Ctrl-C is obeyed between calls."""
SAFETY, MIN_FACTOR, MAX_FACTOR = 0.9, 0.2, 10.0
"""Factors by which the step size changes: that of the error estimate times the first, within the bounds of the others."""
ERROR_EXPONENT = -1 / 8
"""Power of the error estimate, which is of order 7, to which step sizes are proportional."""
MAX_DEFECT = 8.0
"""Maximum residual of the ODE on the interpolating polynomial of a step, times half a step, in units of the tolerance."""

_STAGES, _POWERS = 12, 7
_START, _END, _MIDDLE, _PROBE, _DONE = 0, _STAGES, _STAGES + 4, _STAGES + 5, _STAGES + 6
"""Stages of a step beside those of the method: its beginning, its end, the middle of its polynomial, the probe for its size."""


class Tableau(NamedTuple):
    """Coefficients of the Runge-Kutta method DOP853, as weights of the slopes at its stages.

    Parameters
    ----------
    stages, nodes : weights that give the state at each stage, and times of the stages
    polynomial, middle_slope : weights of the coefficients of the interpolating polynomial, and of its slope in the middle
    errors : weights of the error estimates of order 5 and 3
    """

    stages: Float[np.ndarray, "rows stages"]
    nodes: Float[np.ndarray, " rows"]
    polynomial: Float[np.ndarray, "powers stages"]
    middle_slope: Float[np.ndarray, " stages"]
    errors: Float[np.ndarray, "2 stages"]


@lru_cache(maxsize=1)
def tabulate() -> Tableau:
    """Return the coefficients of DOP853 as a `Tableau`, from those of SciPy's class.

    The interpolating polynomial of a step of size h, in x from 0 to 1, is y + sum_i F_i phi_i(x) with phi_0 = x,
    phi_1 = x (1 - x), phi_2 = x^2 (1 - x), and so on; F is h times a linear combination of the slopes at the stages.
    """
    method = scipy.integrate.DOP853  # SciPy is imported here, at the first solution
    rows, nodes = np.zeros((_DONE, _MIDDLE)), np.zeros(_DONE)
    rows[:_STAGES, :_STAGES], nodes[:_STAGES] = method.A, method.C
    rows[_END, :_STAGES], nodes[_END] = method.B, 1.0
    rows[_END + 1 : _MIDDLE], nodes[_END + 1 : _MIDDLE] = method.A_EXTRA, method.C_EXTRA
    rows[_PROBE, 0], nodes[_PROBE] = 1.0, 1.0
    polynomial, start, end = np.zeros((_POWERS, _MIDDLE)), np.eye(_MIDDLE)[0], np.eye(_MIDDLE)[_END]
    polynomial[:3] = rows[_END], start - rows[_END], 2 * rows[_END] - end - start
    polynomial[3:] = method.D
    power = np.arange(_POWERS)
    at_middle = 0.5 ** (power + 1.0)
    rows[_MIDDLE], nodes[_MIDDLE] = at_middle @ polynomial, 0.5
    # the logarithmic derivative of x^a (1 - x)^b at 1/2 is 2 (a - b)
    middle_slope = (2 * (power // 2 + 1 - (power + 1) // 2) * at_middle) @ polynomial
    return Tableau(rows, nodes, polynomial, middle_slope, np.stack([method.E5, method.E3]))


class Interval(NamedTuple):
    """Interval of time in which a solver makes steps, with tolerances and step sizes; all numbers are traced.

    Parameters
    ----------
    end : time at which the last step ends
    just_before : largest time at which the drift is evaluated, just before a kink of a schedule
    rtol, atol : tolerances of the steps
    defect_rtol, defect_atol : tolerances of the interpolating polynomials
    runs : number of runs; further rows of a state are padding
    steps : number of steps to make, unless the end is reached before
    dense : whether to compute interpolating polynomials
    """

    end: Any
    reduce_below_jump: Any
    rtol: Any
    atol: Any
    defect_rtol: Any
    defect_atol: Any
    runs: Any
    steps: Any
    dense: Any


class Attempt(NamedTuple):
    """State of the loop that makes one step: stage, size of this and of the next step, rejections, failure, and slopes."""

    stage: Array
    size: Array
    next_size: Array
    rejected: Array
    failed: Array
    accurate: Array
    y: Float[Array, "rows n"]
    slopes: Float[Array, "stages rows n"]


class SolverSteps(NamedTuple):
    """Steps that one call of compiled code has made, as arrays of JAX within the call and of NumPy after it.

    Parameters
    ----------
    made : number of steps that were made
    failed : whether the next step failed, since its size became too small
    size : size of the next step
    t, y : time and states at the end of each step, of shapes (steps,) and (steps, rows, n)
    polynomials : coefficients of the interpolating polynomials, of shape (steps, powers, rows, n)
    accurate : whether each polynomial satisfies the ODE
    """

    made: Any
    failed: Any
    size: Any
    t: Any
    y: Any
    polynomials: Any
    accurate: Any


def make_steps(
    drift: Callable[[Array, Array], Array], buffer: int, t: Array, y: Array, size: Array, within: Interval
) -> SolverSteps:
    """Make at most `buffer` steps of DOP853 from time t and state y, and return these steps.

    Parameters
    ----------
    drift : the time derivative of the states at a time
    t, y : time, and one state in each row
    size : size of the first step; NaN chooses it from the drift
    within : interval, tolerances and number of steps
    """
    tableau = tabulate()
    # at t = 0 the spacing of floats is denormal, and compiled code may flush it to zero
    smallest = lambda t: jnp.maximum(10 * (jnp.nextafter(t, jnp.inf) - t), 1e-290)
    norm = lambda rows: jnp.sqrt((jnp.where(jnp.arange(len(y))[:, None] < within.runs, rows, 0.0) ** 2).sum())
    entries = within.runs * y.shape[1]

    def attempt_step(t: Array, y: Array, first: Array, size: Array) -> Attempt:
        """Repeat a step with smaller and smaller sizes until its error is within the tolerance."""
        scale = within.atol + jnp.abs(y) * within.rtol
        # a size that is not a number, from a drift that overflows, becomes the smallest one, which then fails
        bounded = lambda size: jnp.minimum(jnp.where(size > smallest(t), size, smallest(t)), within.end - t)

        def start(a: Attempt, slope, point):
            d0, d1 = norm(y / scale) / jnp.sqrt(entries), norm(slope / scale) / jnp.sqrt(entries)
            guess = jnp.where((d0 < 1e-5) | (d1 < 1e-5), 1e-6, 0.01 * d0 / d1)
            unknown = jnp.isnan(a.size)
            return a._replace(
                stage=jnp.where(unknown, _PROBE, 1),
                size=bounded(jnp.where(unknown, guess, a.size)),
            )

        def probe(a: Attempt, slope, point):
            d1 = norm(a.slopes[0] / scale) / jnp.sqrt(entries)
            d2 = norm((slope - a.slopes[0]) / scale) / jnp.sqrt(entries) / a.size
            flat = (d1 <= 1e-15) & (d2 <= 1e-15)
            wanted = jnp.where(flat, jnp.maximum(1e-6, a.size * 1e-3), (0.01 / jnp.maximum(d1, d2)) ** -ERROR_EXPONENT)
            return a._replace(stage=jnp.asarray(1), size=bounded(jnp.minimum(100 * a.size, wanted)))

        def go_on(a: Attempt, slope, point):
            return a._replace(stage=a.stage + 1)

        def judge(a: Attempt, slope, point):
            scale = within.atol + jnp.maximum(jnp.abs(y), jnp.abs(point)) * within.rtol
            fifth, third = (norm(jnp.tensordot(each, a.slopes[: _STAGES + 1], 1) / scale) ** 2 for each in tableau.errors)
            both = (fifth + 0.01 * third) * entries
            error = jnp.where(both == 0, 0.0, a.size * fifth / jnp.sqrt(jnp.where(both == 0, 1.0, both)))
            change = SAFETY * jnp.where(error == 0, 1.0, error) ** ERROR_EXPONENT
            accepted = error < 1  # false if the error is not a number
            grown = jnp.where(error == 0, MAX_FACTOR, jnp.minimum(MAX_FACTOR, change))
            grown = jnp.where(a.rejected, jnp.minimum(1.0, grown), grown)
            shrunk = a.size * jnp.where(change > MIN_FACTOR, change, MIN_FACTOR)
            too_small = ~(shrunk >= smallest(t))
            return a._replace(
                stage=jnp.where(accepted, jnp.where(within.dense, _END + 1, _DONE), jnp.where(too_small, _DONE, 1)),
                size=jnp.where(accepted, a.size, shrunk),
                next_size=a.size * grown,
                rejected=~accepted,
                failed=~accepted & too_small,
            )

        def check_middle(a: Attempt, slope, point):
            defect = a.size / 2 * jnp.abs(slope - jnp.tensordot(tableau.middle_slope, a.slopes[:_MIDDLE], 1))
            fits = defect <= MAX_DEFECT * (within.defect_atol + within.defect_rtol * jnp.abs(point))
            padding = (jnp.arange(len(y)) >= within.runs)[:, None]
            return a._replace(stage=jnp.asarray(_DONE), accurate=(fits | padding).all())

        kinds = np.full(_DONE, 2)
        kinds[[_START, _PROBE, _END, _MIDDLE]] = 0, 1, 3, 4
        # slopes in the middle and of the probe are used at once, and stored in a row that no stage reads
        row = np.minimum(np.arange(_DONE), _MIDDLE)

        def next_stage(a: Attempt) -> Attempt:
            point = y + a.size * jnp.tensordot(jnp.asarray(tableau.stages)[a.stage], a.slopes[:_MIDDLE], 1)
            point = jnp.where(a.stage == _START, y, point)  # the size may not be known yet
            now = t + jnp.where(a.stage == _START, 0.0, jnp.asarray(tableau.nodes)[a.stage] * a.size)
            slope = drift(jnp.minimum(now, within.reduce_below_jump), point)
            a = a._replace(slopes=a.slopes.at[jnp.asarray(row)[a.stage]].set(slope), y=jnp.where(a.stage == _END, point, a.y))
            update = lambda branch: lambda: branch(a, slope, point)._replace(y=a.y, slopes=a.slopes)[:6]
            branches = [update(branch) for branch in (start, probe, go_on, judge, check_middle)]
            stage, size, next_size, rejected, failed, accurate = lax.switch(jnp.asarray(kinds)[a.stage], branches)
            # an attempt begins with the slope at the start alone: others may not be finite, and zero times them is neither
            stale = (stage == 1) & (jnp.arange(len(a.slopes)) > 0)
            slopes = jnp.where(stale[:, None, None], 0.0, a.slopes)
            return Attempt(stage, size, next_size, rejected, failed, accurate, a.y, slopes)

        no, stage = jnp.asarray(False), jnp.where(jnp.isnan(first).all(), _START, 1)
        size = jnp.where(stage == _START, size, bounded(size))
        slopes = jnp.zeros((_MIDDLE + 1, *y.shape)).at[0].set(jnp.where(stage == _START, 0.0, first))
        begin = Attempt(stage, size, size, no, no, jnp.asarray(True), y, slopes)
        return lax.while_loop(lambda a: a.stage != _DONE, next_stage, begin)

    def take_step(carry):
        t, y, first, steps = carry
        a = attempt_step(t, y, first, steps.size)
        k, reached = steps.made, jnp.where(t + a.size >= within.end, within.end, t + a.size)
        stored = SolverSteps(
            jnp.where(a.failed, k, k + 1),
            a.failed,
            a.next_size,
            steps.t.at[k].set(reached),
            steps.y.at[k].set(a.y),
            steps.polynomials.at[k].set(a.size * jnp.tensordot(tableau.polynomial, a.slopes[:_MIDDLE], 1)),
            steps.accurate.at[k].set(a.accurate),
        )
        return reached, a.y, a.slopes[_END], stored

    more = lambda carry: (carry[3].made < within.steps) & ~carry[3].failed & (carry[0] < within.end)
    empty = SolverSteps(
        jnp.asarray(0),
        jnp.asarray(False),
        size,
        jnp.zeros(buffer),
        jnp.zeros((buffer, *y.shape)),
        jnp.zeros((buffer, _POWERS, *y.shape)),
        jnp.zeros(buffer, bool),
    )
    return lax.while_loop(more, take_step, (t, y, jnp.full_like(y, jnp.nan), empty))[3]


class StepPolynomial:
    """Interpolating polynomial of the solution over one step; `accurate` says whether the polynomial satisfies the ODE."""

    def __init__(self, begin: float, end: float, y: np.ndarray, F: Float[np.ndarray, "powers n"], accurate: bool) -> None:
        self.begin, self.end, self.y, self.F, self.accurate = begin, end, y, F, accurate

    def __call__(self, t: Any) -> np.ndarray:
        """Return the state at each time, with the times on the last axis."""
        x = (np.asarray(t) - self.begin) / (self.end - self.begin)
        value = np.zeros((self.y.size, *x.shape))
        for i, coefficients in reversed(list(enumerate(self.F))):
            value = (value + coefficients.reshape(-1, *[1] * x.ndim)) * (x if i % 2 == 0 else 1 - x)
        return value + self.y.reshape(-1, *[1] * x.ndim)


class CompiledSolver:
    """Solver with the interface of `scipy.integrate.OdeSolver` that takes its steps from compiled calls of several steps.

    Parameters
    ----------
    call : `make_steps`, bound to a drift and compiled: a function of the time, the states, the step size and the interval
    buffer : maximum number of steps of a call
    t, y : initial time, and the states of runs, one in each row, with padding
    size : size of the first step; NaN chooses it
    within : interval and tolerances
    """

    def __init__(self, call: Callable, buffer: int, t: float, y: np.ndarray, size: float, within: Interval) -> None:
        self.call, self.buffer, self.within = call, buffer, within
        self.t, self.rows, self.h_abs, self.step_size = t, y, size, np.nan
        self.status = "running" if t < within.end else "finished"
        self.steps_per_call, self.position = 1, 0
        self.steps: SolverSteps | None = None
        self.polynomial: StepPolynomial | None = None

    @property
    def y(self) -> np.ndarray:
        """The states of all runs, as one vector."""
        return self.rows[: self.within.runs].ravel()

    def step(self) -> None:
        """Make one step, taken from the last call if it has more of them."""
        if self.steps is None or self.position == self.steps.made:
            self._make_call()
        steps, i = self.steps, self.position
        assert steps is not None
        if i == steps.made:
            self.status = "failed"
            return
        low, before, t = self.t, self.y, float(steps.t[i])
        last = i + 1 == steps.made
        self.t, self.rows, self.step_size, self.position = t, steps.y[i], t - low, i + 1
        # within a call the size of the next step is known from that step; SciPy's solvers have the size before truncation
        self.h_abs = float(steps.size) if last else float(steps.t[i + 1]) - t
        self.status = "finished" if t >= self.within.end else "running"
        F = steps.polynomials[i][:, : self.within.runs].reshape(_POWERS, -1)
        self.polynomial = StepPolynomial(low, t, before, F, bool(steps.accurate[i]))

    def dense_output(self) -> StepPolynomial:
        """Return the interpolating polynomial of the last step."""
        assert self.polynomial is not None
        return self.polynomial

    def _make_call(self) -> None:
        """Make steps of the ODE in one compiled call: as many as take about `CALL_SECONDS`."""
        begin, within = time.perf_counter(), self.within._replace(steps=self.steps_per_call)
        found = self.call(self.t, self.rows, self.h_abs, within)
        self.steps, self.position = SolverSteps(*map(np.asarray, found)), 0
        each = (time.perf_counter() - begin) / max(1, int(self.steps.made))
        self.steps_per_call = int(np.clip(min(CALL_SECONDS / max(each, 1e-9), 8 * self.steps_per_call), 1, self.buffer))


def buffered_steps(rows: int, n: int) -> int:
    """Return the number of steps that one call may return for states of the given shape."""
    return max(1, min(MAX_BUFFERED_STEPS, MAX_BUFFERED_FLOATS // max(1, _POWERS * rows * n)))
