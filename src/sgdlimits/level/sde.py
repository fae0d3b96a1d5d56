r"""The diffusion that approximates the chain for large d.

.. math:: dX = b(X)\, dt + d^{-1/2} \Sigma(X)^{1/2} dB,

where X are the statistics, b is the drift of the ODE, B Brownian motion and :math:`\Sigma` the covariance of one sample's
increment (times d). If :math:`\Sigma` has a
closed form and few statistics, the noise of a step is Gaussian, from its matrix root. Otherwise no covariance is computed: for
N fresh samples with increments :math:`\Delta_i`, taken in pairs, the vector

.. math:: \eta = N^{-1/2} \sum_i (\Delta_{2i-1} - \Delta_{2i})

has mean zero, covariance exactly :math:`\Sigma` and no odd moments. A weak scheme needs no more, and the cost is N gradients
for any width, activation and loss. This noise vanishes where the increments do (perfect recovery) and respects the sphere.
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

from sgdlimits.algorithm.blocks import block_increments, with_block_axis, without_block_axis
from sgdlimits.algorithm.limit import StepInputs, make_step_inputs, step_increments
from sgdlimits.algorithm.needs import input_count, is_linear
from sgdlimits.checks import memory_bounded_count
from sgdlimits.domain import Count, Positive, checked
from sgdlimits.errors import BadInput, check_count
from sgdlimits.expectation.gaussian.base import square_root
from sgdlimits.inputs import Blocks
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
from sgdlimits.statistics.blocks import block_field_factors
from sgdlimits.statistics.frame import FieldFactor, factor_fields
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, rows_of
from sgdlimits.statistics.products import Moments
from sgdlimits.statistics.trees import add, as_floats, move_runs_first, move_runs_last, repeat_for_samples

STEP_TIMES_RATE = 0.025
"""Default step size in t, in units of the inverse of the drift's fastest rate at the start."""
DIFFERENCE_STEP = 1e-6
"""Step of the central differences for the fastest rate, relative to the coordinate if that exceeds 1, else absolute.

Only the order of magnitude of the rate matters.
"""
RATE_EVALUATION_TIMES = (0.0, 0.1, 1.0, 10.0, 100.0, 1000.0)
"""Times, beside the knots of schedules, at which the fastest rate of a time-dependent drift is evaluated."""
DEFAULT_SAMPLE_COUNT = 4
"""Default number of samples from which the noise of a diffusion step is made, the same for all problems."""
MAX_STATISTICS_FOR_ROOT = 8
"""Number of statistics up to which a matrix root of the noise covariance costs less than the chain steps it replaces."""
MAX_FLOATS_PER_STEP = 2**16
"""Approximate maximum number of floats in a step of all runs of a batch; bounds memory."""


@checked
class SDE(Level):
    """The diffusion that approximates the statistics of SGD in large, finite dimension `d`.

    Parameters
    ----------
    d : dimension
    dt : step in t; None takes a fortieth of the fastest time scale of the drift at the start, and at least one step of SGD.
        Between two knots of schedules, steps are equal and at most this long
    samples : N, an even number of fresh samples that make the noise of each step: more samples bring the noise of a single step
        closer to Gaussian; None takes Gaussian noise for a closed covariance of few statistics, and four samples otherwise

    Notes
    -----
    One step applies half of the noise, a Heun step of the drift, and the same half of the noise again: weak order 1, and order
    2 in the terms without the factor 1/d. A step costs two drifts and N gradients, and replaces d dt steps of the exact
    chain, which is cheaper if a drift costs more than half of these chain steps.

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
    samples: Annotated[int, memory_bounded_count(64)] | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if self.samples is not None and check_count("samples", self.samples, at_least=2) % 2:
            raise BadInput(f"samples must be even, since they are used in pairs; got {self.samples}. Give {self.samples + 1}.")

    def adapt_problem(self, problem):
        return problem.limit

    def make_engine(self, problem, start, first):
        problem = problem.limit.numerics.refined(first)
        dt = self.dt or max(problem.numerics.samples_per_step / self.d, STEP_TIMES_RATE / fastest_rate(problem, first))
        floats_per_run = (1 + (self.samples or DEFAULT_SAMPLE_COUNT)) * problem.numerics.size
        max_batch = int(min(2048, max(16, MAX_FLOATS_PER_STEP / floats_per_run)))
        process = make_diffusion(problem, self.d, self.samples, first)
        return ProcessEngine(SDE(self.d, dt, self.samples), problem, max_batch, self.d, process, dt)


def fastest_rate(problem: Problem, stats: PyTree) -> float:
    """Return the fastest rate of the drift: the largest modulus of its Jacobian's eigenvalues at the statistics of one run.

    The Jacobian comes from finite differences, since the rate only sets a scale. For a time-dependent problem the rate is the
    largest over several times: a learning rate may begin at zero.
    """
    vector = np.asarray(problem.vector(stats))
    compiled_drift = jit_bound(_drift_vector, problem, stats, fast_compile=True)
    drift = lambda t, x: np.asarray(compiled_drift(t, x))
    steps = DIFFERENCE_STEP * np.eye(vector.size) * np.maximum(1.0, np.abs(vector))

    def rate_at(t: float) -> float:
        columns = [(drift(t, vector + step) - drift(t, vector - step)) / (2 * step.max()) for step in steps]
        return float(np.abs(np.linalg.eigvals(np.stack(columns, axis=1))).max())

    times = (0.0,) if problem.at(1.0) is problem else (*RATE_EVALUATION_TIMES, *knots_of(problem).tolist())
    return max(1e-6, *map(rate_at, times))  # bounded below, so that the step is finite at a point where nothing moves


def _drift_vector(problem: Problem, stats: PyTree, t: Any, x: Any) -> Float[Array, " n"]:
    """Return the drift as a vector, at the vector `x` of changing statistics; `stats` supplies the entries not in `x`."""
    return problem.vector(problem.drift(problem.from_vector(x, stats), t))


def _largest_eigenvalue_modulus(state: PyTree) -> Float[Array, " runs"]:
    """Return the largest modulus of the entries of each run's state; runs are on the last axis."""
    return jnp.stack([jnp.abs(leaf).reshape(-1, leaf.shape[-1]).max(0) for leaf in jax.tree.leaves(state)]).max(0)


@singledispatch
def make_diffusion(problem: Problem, d: int, samples: int | None, first: PyTree) -> Process:
    """Return the diffusion that approximates the chain of a problem, with noise from the covariance of its increments.

    Register a function for a kind of problem with other noise.
    """
    return CovarianceDiffusion(problem, d, first)


class Diffusion(Process):
    """Base class of discretised diffusions of the statistics, with steps of weak second order and runs on the last axis."""

    small: ClassVar[bool] = True
    d: eqx.AbstractVar[Float[Array, ""]]

    def start(self, stats: PyTree) -> PyTree:
        return move_runs_last(stats)

    def step(self, state: PyTree, variates: PyTree, now: StepTime) -> PyTree:
        """Apply half of the noise, a Heun step of the drift, and the same half of the noise again.

        Both drifts are evaluated at the time of the middle of the step: the order is the same, a drift that diverges as 1/t
        at time zero is not evaluated there, and a step that ends at a knot of a schedule sees one side of it only.
        """
        size, t = now.size, now.t + now.size / 2
        half = self.noise(state, variates, jnp.sqrt(size / self.d) / 2, t)
        middle = add(state, half)

        def heun_stage(_, carry):
            here, slopes = carry
            drift = self.problem.numerics.over_runs(
                lambda one: self.problem.drift(one, t), self.problem.coordinates.admissible(here), axis=-1
            )
            return add(middle, drift, size), add(slopes, drift)

        # a loop of two rounds, so that the drift is compiled once
        _, slopes = lax.fori_loop(0, 2, heun_stage, (middle, jax.tree.map(jnp.zeros_like, state)))
        new = add(add(middle, half), slopes, size / 2)
        corrected = self.problem.coordinates.admissible(new)
        # a correction larger than the state is neither rounding nor noise: the step is far too long, and the run diverges
        lost = _largest_eigenvalue_modulus(add(corrected, new, -1.0)) > _largest_eigenvalue_modulus(state)
        return jax.tree.map(lambda leaf: jnp.where(lost, jnp.nan, leaf), corrected)

    @abc.abstractmethod
    def noise(self, state: PyTree, variates: PyTree, scale: Array, t: Array) -> PyTree:
        """Return the noise of a step at the states of all runs: `scale` times noise with the covariance of the increments."""

    def statistics(self, state: PyTree) -> PyTree:
        return move_runs_first(state)


class CovarianceDiffusion(Diffusion):
    """Diffusion whose Gaussian noise comes from a matrix root of the covariance; for problems with few statistics."""

    problem: Problem
    d: Float[Array, ""]
    entries: int = eqx.field(static=True)
    block: int = eqx.field(static=True)

    def __init__(self, problem: Problem, d: int, first: PyTree) -> None:
        self.problem, self.d, self.block = problem, as_floats(d), 16
        self.entries = problem.vector(first).size

    def draw(self, stream: Stream) -> Float[Array, "steps n runs"]:
        return stream.normal(Purpose.NOISE, self.entries)

    def noise(self, state, variates, scale, t):
        def noise_of_run(pair):
            stats, xi = pair
            kick = scale * square_root(self.problem.covariance(stats, t)) @ xi
            # from_vector takes entries outside the vector from stats: the difference has zeros there
            zeros = jnp.zeros_like(self.problem.vector(stats))
            return add(self.problem.from_vector(kick, stats), self.problem.from_vector(zeros, stats), -1.0)

        return self.problem.numerics.over_runs(noise_of_run, (state, variates), axis=-1)


class NoiseSamples(NamedTuple):
    """Random samples whose gradients give the noise of one SDE step: normal coordinates of inputs, label noise and classes."""

    points: Float[Array, "L s samples runs"]
    z: Float[Array, "b samples runs"]
    c: Int[Array, "b samples runs"]


class SampledDiffusion(Diffusion):
    """Diffusion whose noise is made of SGD increments from fresh samples, which avoids forming a covariance matrix.

    The increments are those of single samples, or of whole steps if the algorithm is not linear in the gradient. The cost grows
    with the width as that of an SGD step.

    """

    problem: ProjectionProblem
    d: Float[Array, ""]
    samples: int = eqx.field(static=True)
    block: int = eqx.field(static=True)

    def __init__(self, problem: ProjectionProblem, d: int, samples: int) -> None:
        self.problem, self.d, self.samples, self.block = problem, as_floats(d), samples, 4

    @property
    def _samples_and_inputs(self) -> tuple[int, int]:
        """Numbers of samples and of input vectors from which the noise of one SDE step is computed.

        The numbers are (1, 1), or those of one step for an algorithm that is not linear in the gradient.
        """
        algorithm, width = self.problem.algorithm, self.problem.network.width
        return (1, 1) if is_linear(algorithm, width) else (algorithm.batch, input_count(algorithm, width))

    @property
    def _coordinate_count(self) -> int:
        """Number of normal coordinates that determine the fields of an input."""
        problem = self.problem
        each = problem.network.width * len(problem.algorithm.names) + problem.target.teachers
        if problem.data.has_noise:  # clean coordinates along the fixed directions, given the noisy ones
            each += problem.target.teachers
        return each * (problem.data.blocks or 1)

    def draw(self, stream: Stream) -> NoiseSamples:
        if has_schedules(self.problem.model.inputs.without_noise()):  # the step scales input noise, not the draw
            return draw_by_step(self, stream)
        problem, N, (b, L) = self.problem, self.samples, self._samples_and_inputs
        s = self._coordinate_count
        normal = stream.normal(Purpose.NOISE, (s * L + b) * N).reshape(stream.steps, s * L + b, N, -1)
        points, z = jnp.split(normal, [s * L], axis=1)
        c = problem.model.inputs.draw_class(stream, b * N).reshape(stream.steps, b, N, -1)
        return NoiseSamples(points.reshape(stream.steps, L, s, N, -1), z, c)

    def noise(self, state, variates, scale, t):
        problem, (b, _) = self.problem.at(t), self._samples_and_inputs
        # signs alternate, so that pairs of samples cancel in the mean and in all odd moments
        weights = scale * np.resize([1.0, -1.0], (self.samples, 1)) / np.sqrt(self.samples)
        F = factor_fields(state, problem.frame)
        x = make_step_inputs(
            problem.model, FieldFactor(*(rows[:, :, None] for rows in F)), variates.points, variates.z, variates.c
        )
        if is_linear(problem.algorithm, problem.network.width):
            return add(*linear_increments(problem, state, self._weighted_moments(problem, state, x, weights), 0.0))
        one = lambda stats, x: add(*step_increments(problem.algorithm, problem.model, t, stats, x))
        each = jax.vmap(jax.vmap(one, (None, -1), -1), (-1, -1), -1)(state, x)
        # increments are per sample, of steps of b samples: their variance per unit of t has the factor b
        return jax.tree.map(lambda leaf: (leaf * (weights * np.sqrt(b))).sum(-2), each)

    @staticmethod
    def _weighted_moments(
        problem: ProjectionProblem, state: Overlaps, x: StepInputs, weights: Float[Array, "samples 1"]
    ) -> Moments:
        """Return weighted sums over samples of the products of one-sample gradients with fields and with each other."""
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


class BlockDiffusion(SampledDiffusion):
    """Diffusion with noise from samples whose variance depends on the block of coordinates and on the class."""

    def noise(self, state, variates, scale, t):
        problem, data = self.problem.at(t), self.problem.at(t).data
        full, k = with_block_axis(state), self.problem.target.teachers
        F = block_field_factors(full, jnp.reshape(problem.frames, (-1, k, k)))
        c = variates.c[0] % data.classes
        y = variates.points[0].reshape(len(data.shares), -1, *c.shape)
        variance = data.variance.T[:, c if data.variance_by_class else jnp.zeros_like(c)]
        s = F.student.shape[2]
        x = jnp.sqrt(variance + data.noise_variance)[:, None] * y[:, :s]
        fields, fixed = (jnp.einsum("bnsR,bsiR->bniR", rows, x) for rows in F)
        clean = fixed
        if data.has_noise:
            inside = data.split_noise(variance[:, None], x[:, :k], y[:, s:])
            clean = jnp.einsum("bnsR,bsiR->bniR", F.fixed[:, :, :k], inside)
        if data.means is not None:
            means = data.means[c].transpose(2, 0, 1)
            fields = fields + jnp.einsum("bnrR,riR->bniR", full.M, means)
            shift = jnp.einsum("bsr,riR->bsiR", jnp.reshape(problem.model.gram, (-1, k, k)), means)
            fixed, clean = fixed + shift, clean + shift
        students = fields.sum(0)[rows_of(state.names, STUDENT, problem.network.width)]
        scalars = repeat_for_samples(state.a, students.shape[1], axis=-2)
        G, second = problem.model.gradient(students, clean.sum(0), scalars, variates.z[0], variates.c[0])
        # signs alternate, so that pairs of samples cancel in the mean and in all odd moments
        weights = scale * np.resize([1.0, -1.0], (self.samples, 1)) / np.sqrt(self.samples)
        length = np.asarray(data.shares)[:, None, None] * (variance + data.noise_variance)
        sums = Moments(
            loss=jnp.zeros(()),
            gradient_fixed=jnp.einsum("jiR,briR->bjrR", G * weights, fixed),
            gradient_field=jnp.einsum("jiR,bliR->bjlR", G * weights, fields),
            gradient_gradient=jnp.einsum("jiR,liR,biR->bjlR", G * weights, G, length),
            gradient_second=jax.tree.map(lambda leaf: (leaf * weights).sum(-2), second),
        )
        change = add(*block_increments(problem.algorithm, problem.t, full, sums, 0.0))
        return change if state.has_blocks else without_block_axis(change)


@make_diffusion.register
def _(problem: ProjectionProblem, d: int, samples: int | None, first: PyTree) -> Diffusion:
    cheap_root = problem.numerics.closed_covariance and problem.vector(first).size <= MAX_STATISTICS_FOR_ROOT
    if samples is None and cheap_root:
        return CovarianceDiffusion(problem, d, first)
    diffusion: type[SampledDiffusion] = BlockDiffusion if isinstance(problem.data, Blocks) else SampledDiffusion
    return diffusion(problem, d, samples or DEFAULT_SAMPLE_COUNT)
