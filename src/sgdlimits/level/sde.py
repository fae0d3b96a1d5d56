r"""The diffusion that the chain becomes for large d.

.. math:: dX = b(X)\, dt + d^{-1/2} \Sigma(X)^{1/2} dB,

where b is the drift of the ODE and :math:`\Sigma` the covariance of one sample's increment (times d). Where that is closed and
small, the noise of a step is Gaussian, by a root of it. Elsewhere neither is needed: for N fresh samples with increments
:math:`\Delta_i`, taken in pairs, the vector

.. math:: \eta = N^{-1/2} \sum_i (\Delta_{2i-1} - \Delta_{2i})

has mean zero, covariance exactly :math:`\Sigma` and no odd moments. That is all a weak scheme asks for, at the cost of N
gradients for any width, activation and loss; it is zero where the increments are (perfect recovery) and stays on the sphere.
"""

from __future__ import annotations

import abc
from functools import singledispatch
from typing import Annotated, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from sgdlimits.algorithm.limit import Drawn, any_changes, placed
from sgdlimits.checks import sized
from sgdlimits.domain import Count, Positive, checked
from sgdlimits.errors import BadInput, check_count
from sgdlimits.expectation.gaussian.base import square_root
from sgdlimits.jaxtools import jit_bound
from sgdlimits.kernel.base import StepTime
from sgdlimits.kernel.random import Purpose, Stream
from sgdlimits.level.base import Level
from sgdlimits.level.process import Process, draw_by_step
from sgdlimits.level.stepper import ProcessEngine
from sgdlimits.part import has_schedules
from sgdlimits.problem.base import Problem
from sgdlimits.problem.projection import ProjectionProblem, linear_increments
from sgdlimits.schedule import knots_of
from sgdlimits.statistics.frame import FieldFactor, factor_fields
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, rows_of
from sgdlimits.statistics.products import Moments
from sgdlimits.statistics.trees import add, repeat_for_samples, as_floats, runs_first, runs_last

STEP_TIMES_RATE, DIFFERENCE = 0.025, 1e-6
TIMES = (0.0, 0.1, 1.0, 10.0, 100.0, 1000.0)
"""At which the rates of a problem that changes with time are looked at."""
SAMPLES = 4
"""One number for all steps, so that another learning rate or dimension compiles nothing."""
FEW_STATISTICS = 8
"""So many have a covariance whose root costs less than the steps of the chain that a step stands for."""
NUMBERS_AT_ONCE = 2**16
"""About so many numbers a step of all runs may need."""


@checked
class SDE(Level):
    """The diffusion of the statistics in dimension `d`.

    Parameters
    ----------
    d : dimension
    dt : step in t; None takes a fortieth of the drift's fastest time scale at the start, and at least one step of SGD
    samples : N, an even number of fresh samples behind each step's noise: more make a single step's noise closer to Gaussian;
        None takes Gaussian noise where the covariance is closed and of few statistics, and four samples elsewhere

    Notes
    -----
    One step is noise, drift, noise, with half of the noise before and half after a Heun step of the drift: weak order 1, and
    order 2 in what is not multiplied by 1/d. It costs two drifts and N gradients and stands for d dt steps of the chain, which
    is exact, and cheaper where a drift costs more than half of these.

    See Also
    --------
    sgdlimits.Chain : the exact process
    sgdlimits.ODE : the same drift without noise
    """

    name: ClassVar[str] = "sde"
    leaves_cone: ClassVar[bool] = True
    batchable: ClassVar[bool] = True
    d: Count = eqx.field(static=True)
    dt: Positive | None = eqx.field(static=True, default=None)
    samples: Annotated[int, sized(64)] | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if self.samples is not None and check_count("samples", self.samples, at_least=2) % 2:
            raise BadInput(f"samples must be even, since they are taken in pairs; got {self.samples}. Give {self.samples + 1}.")

    def view(self, problem):
        return problem.limit

    def bind(self, problem, start, first):
        problem = problem.limit.numerics.refined(first)
        dt = self.dt or max(problem.numerics.samples_per_step / self.d, STEP_TIMES_RATE / fastest_rate(problem, first))
        most = int(min(2048, max(16, NUMBERS_AT_ONCE / ((1 + (self.samples or SAMPLES)) * problem.numerics.size))))
        process = diffusion_process(problem, self.d, self.samples, first)
        return ProcessEngine(SDE(self.d, dt, self.samples), problem, most, self.d, process, dt)


def fastest_rate(problem: Problem, stats: PyTree) -> float:
    """The largest modulus of the drift's linear rates at statistics of one run, from differences: it sets a scale only.

    Where the problem changes with time, that is the largest over times: a learning rate may begin at zero.
    """
    vector = np.asarray(problem.vector(stats))
    along = jit_bound(_along, problem, stats, fast_compile=True)
    slope = lambda t, x: np.asarray(along(t, x))
    steps = DIFFERENCE * np.eye(vector.size) * np.maximum(1.0, np.abs(vector))

    def rate(t: float) -> float:
        columns = [(slope(t, vector + step) - slope(t, vector - step)) / (2 * step.max()) for step in steps]
        return float(np.abs(np.linalg.eigvals(np.stack(columns, axis=1))).max())

    return max(1e-6, *map(rate, (0.0,) if problem.at(1.0) is problem else (*TIMES, *knots_of(problem).tolist())))


def _along(problem: Problem, stats: PyTree, t: Any, x: Any) -> Float[Array, " n"]:
    return problem.vector(problem.drift(problem.from_vector(x, stats), t))


def _largest(state: PyTree) -> Float[Array, " runs"]:
    """The largest modulus among the numbers of each run, the runs last."""
    return jnp.stack([jnp.abs(leaf).reshape(-1, leaf.shape[-1]).max(0) for leaf in jax.tree.leaves(state)]).max(0)


@singledispatch
def diffusion_process(problem: Problem, d: int, samples: int | None, first: PyTree) -> Process:
    """The diffusion of a problem: from its covariance, unless a way without it is registered for its kind."""
    return CovarianceDiffusion(problem, d, first)


class Diffusion(Process):
    """Weak steps of a diffusion, on statistics with the runs last."""

    small: ClassVar[bool] = True
    d: eqx.AbstractVar[Float[Array, ""]]

    def start(self, stats: PyTree) -> PyTree:
        return runs_last(stats)

    def step(self, state: PyTree, numbers: PyTree, now: StepTime) -> PyTree:
        """Half of the noise, two drifts by Heun's rule in a loop, so compiled once, and the other half.

        Both drifts are those of the middle of the step in time, which is as exact, and safe where a drift begins as 1/t.
        """
        size, t = now.size, now.t + now.size / 2
        half = self.noise(state, numbers, jnp.sqrt(size / self.d) / 2, t)
        middle = add(state, half)

        def stage(_, carry):
            here, slopes = carry
            drift = self.problem.numerics.over_runs(
                lambda one: self.problem.drift(one, t), self.problem.coordinates.admissible(here), axis=-1
            )
            return add(middle, drift, size), add(slopes, drift)

        _, slopes = lax.fori_loop(0, 2, stage, (middle, jax.tree.map(jnp.zeros_like, state)))
        there = add(add(middle, half), slopes, size / 2)
        held = self.problem.coordinates.admissible(there)
        lost = _largest(add(held, there, -1.0)) > _largest(state)  # no rounding and no noise: the step is far too long
        return jax.tree.map(lambda leaf: jnp.where(lost, jnp.nan, leaf), held)

    @abc.abstractmethod
    def noise(self, state: PyTree, numbers: PyTree, scale: Array, t: Array) -> PyTree:
        """Noise of the covariance at the states, times `scale`."""

    def statistics(self, state: PyTree) -> PyTree:
        return runs_first(state)


class CovarianceDiffusion(Diffusion):
    """Gaussian noise from a root of the covariance: for problems with few statistics."""

    problem: Problem
    d: Float[Array, ""]
    entries: int = eqx.field(static=True)
    block: int = eqx.field(static=True)

    def __init__(self, problem: Problem, d: int, first: PyTree) -> None:
        self.problem, self.d, self.block = problem, as_floats(d), 16
        self.entries = problem.vector(first).size

    def draw(self, stream: Stream) -> Float[Array, "steps n runs"]:
        return stream.normal(Purpose.NOISE, self.entries)

    def noise(self, state, numbers, scale, t):
        def one(pair):
            stats, xi = pair
            kick = scale * square_root(self.problem.covariance(stats, t)) @ xi
            still = jnp.zeros_like(self.problem.vector(stats))
            return add(self.problem.from_vector(kick, stats), self.problem.from_vector(still, stats), -1.0)

        return self.problem.numerics.over_runs(one, (state, numbers), axis=-1)


class Kicks(NamedTuple):
    """The samples behind one step's noise: standard normal coordinates, label noise, classes."""

    points: Float[Array, "L s samples runs"]
    z: Float[Array, "b samples runs"]
    c: Int[Array, "b samples runs"]


class SampledDiffusion(Diffusion):
    """Noise made of fresh samples, or of fresh steps where the algorithm is not linear in the gradient: for any width."""

    problem: ProjectionProblem
    d: Float[Array, ""]
    samples: int = eqx.field(static=True)
    block: int = eqx.field(static=True)

    def __init__(self, problem: ProjectionProblem, d: int, samples: int) -> None:
        self.problem, self.d, self.samples, self.block = problem, as_floats(d), samples, 4

    @property
    def _each(self) -> tuple[int, int]:
        """Of what noise is made: samples and inputs in each, one sample or those of a step."""
        algorithm = self.problem.algorithm
        return (1, 1) if algorithm.linear else (algorithm.batch, algorithm.inputs(self.problem.network.width))

    def draw(self, stream: Stream) -> Kicks:
        if has_schedules(self.problem.model.inputs):
            return draw_by_step(self, stream)
        problem, N, (b, L) = self.problem, self.samples, self._each
        s = problem.network.width * len(problem.algorithm.names) + problem.target.teachers
        normal = stream.normal(Purpose.NOISE, (s * L + b) * N).reshape(stream.steps, s * L + b, N, -1)
        points, z = jnp.split(normal, [s * L], axis=1)
        c = problem.model.inputs.draw_class(stream, b * N).reshape(stream.steps, b, N, -1)
        return Kicks(points.reshape(stream.steps, L, s, N, -1), z, c)

    def noise(self, state, numbers, scale, t):
        problem, kicks, (b, _) = self.problem.at(t), numbers, self._each
        weights = scale * np.resize([1.0, -1.0], (self.samples, 1)) / np.sqrt(self.samples)
        F = factor_fields(state, problem.frame)
        x = placed(problem.model, FieldFactor(*(rows[:, :, None] for rows in F)), kicks.points, kicks.z, kicks.c)
        if problem.algorithm.linear:
            return add(*linear_increments(problem, state, self._sums(problem, state, x, weights), 0.0))
        one = lambda stats, x: add(*any_changes(problem.algorithm, problem.model, t, stats, x))
        each = jax.vmap(jax.vmap(one, (None, -1), -1), (-1, -1), -1)(state, x)
        return jax.tree.map(lambda leaf: (leaf * (weights * np.sqrt(b))).sum(-2), each)

    @staticmethod
    def _sums(problem: ProjectionProblem, state: Overlaps, x: Drawn, weights: Float[Array, "samples 1"]) -> Moments:
        """Weighted sums of the products of one-sample gradients."""
        fields, fixed = x.fields[:, 0], x.fixed[:, 0]
        students = fields[rows_of(state.names, STUDENT, problem.network.width)]
        scalars = repeat_for_samples(state.a, students.shape[1], axis=-2)
        G, second = problem.model.gradient(students, fixed, scalars, x.z[0], x.c[0])
        return Moments(
            loss=jnp.zeros(()),
            gradient_fixed=jnp.einsum("jnR,rnR->jrR", G * weights, fixed),
            gradient_field=jnp.einsum("jnR,lnR->jlR", G * weights, fields),
            gradient_gradient=jnp.einsum("jnR,lnR->jlR", G * weights, G),
            gradient_second=jax.tree.map(lambda leaf: (leaf * weights).sum(-2), second),
        )


@diffusion_process.register
def _(problem: ProjectionProblem, d: int, samples: int | None, first: PyTree) -> Diffusion:
    small = problem.numerics.closed_covariance and problem.vector(first).size <= FEW_STATISTICS
    if samples is None and small:
        return CovarianceDiffusion(problem, d, first)
    return SampledDiffusion(problem, d, samples or SAMPLES)
