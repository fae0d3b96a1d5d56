r"""Change of the statistics by one sample at finite dimension, term by term in the step size.

With :math:`\nabla L` the gradient of one sample's loss times the learning rate, a step of size :math:`\delta` changes
statistics u of the weights by

.. math:: u_i \leftarrow u_i - \delta\,\langle\nabla L, \nabla u_i\rangle
          + \delta^2\, \tfrac12\langle\nabla^2 u_i, \nabla L\otimes\nabla L\rangle ,

exactly if the third derivatives of u vanish. Samples are drawn as in the level `Chain`: coordinates in the span of the
directions, and the squared length of the orthogonal component, a chi-square variate.
"""

from __future__ import annotations

import abc
from functools import singledispatch
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from sgdlimits.algorithm.limit import project_out_norms, step_rates
from sgdlimits.errors import BadInput
from sgdlimits.kernel.random import Purpose, Stream
from sgdlimits.problem.base import Problem
from sgdlimits.problem.projection import ProjectionProblem, linear_increments
from sgdlimits.problem.spiked import SpikedTensor, contract_noise
from sgdlimits.statistics.frame import factor_fields
from sgdlimits.statistics.overlaps import Overlaps, Scalars
from sgdlimits.statistics.products import Moments
from sgdlimits.statistics.spike import Spike
from sgdlimits.statistics.trees import repeat_for_samples


class SampleDraws(NamedTuple):
    """Samples: normal variates in the span of the directions, squared length outside of it over sigma^2, and classes.

    sigma^2 is the variance of the inputs.
    """

    points: Float[Array, "rows samples"]
    outside: Float[Array, " samples"]
    c: Int[Array, " samples"]


class StepTerms(NamedTuple):
    """Change of the statistics by each sample's step, in first and second order of the step size, and the sample's gradient."""

    first_order_terms: Float[Array, "n samples"]
    second_order_terms: Float[Array, "n samples"]
    gradient: Float[Array, "m samples"]


class SampleLaw(eqx.Module):
    """Law of one random sample of a problem, and the change of the statistics by this sample, order by order.

    Parameters
    ----------
    problem : a problem of the kind that the class supports
    span : dimension of the span of all directions
    rows : number of normal variates of a sample
    noise : number of normal variates, the last ones, that are label noise; the mean gradient does not depend on them
    """

    problem: Problem
    span_dimension: int = eqx.field(static=True)
    variate_count: int = eqx.field(static=True)
    noise: int = eqx.field(static=True)

    @abc.abstractmethod
    def terms(self, stats: PyTree, draws: SampleDraws) -> StepTerms:
        """Return the terms of a step from the statistics of one run for each sample, in the order of `problem.vector`."""

    @abc.abstractmethod
    def derivatives(self, stats: PyTree) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Return norms, or upper bounds, of the second and third derivatives of each statistic with respect to the weights."""

    def draw_classes(self, stream: Stream) -> Int[Array, " samples"]:
        """Draw the class of each sample."""
        return jnp.zeros(stream.runs.size, jnp.int32)

    @eqx.filter_jit
    def draw(self, stream: Stream, d: Float[Array, ""]) -> SampleDraws:
        """Draw two samples in dimension `d` for each run of the stream; they differ in the sign of the label noise."""
        points, outside = (
            stream.normal(Purpose.INPUT, self.variate_count)[0],
            stream.chi_square(Purpose.CHI, d[None] - self.span_dimension)[0, 0],
        )
        mirrored = points.at[self.variate_count - self.noise :].multiply(-1)
        twice = lambda numbers: jnp.concatenate([numbers, numbers])
        return SampleDraws(jnp.concatenate([points, mirrored], axis=1), twice(outside), twice(self.draw_classes(stream)))


@singledispatch
def sample_law_of(problem: Problem) -> SampleLaw:
    """Return the law of one sample of a problem; register a function for a new kind of problem."""
    raise BadInput(f"no law of one sample is known for {type(problem).__name__}. Register a law, by sample_law_of.register.")


class ProjectionSampleLaw(SampleLaw):
    """Change of the overlaps by one sample of a projection problem; on the sphere without second-order terms bounded in d."""

    problem: ProjectionProblem

    def draw_classes(self, stream):
        return self.problem.model.inputs.draw_class(stream, 1)[0, 0]

    def terms(self, stats, draws):
        problem, sgd, data = self.problem, self.problem.algorithm, self.problem.data
        F, column = factor_fields(stats, problem.frame), jax.tree.map(lambda leaf: leaf[..., None], stats)
        x, z = problem.model.inputs.from_normal(draws.points[:-1], draws.c, problem.frame), draws.points[-1]
        fields, fixed = F.student @ x, F.fixed @ x
        G, second = problem.model.gradient(fields, fixed, repeat_for_samples(stats.a, z.size), z, draws.c)
        squared = (x**2).sum(0) + data.squared_length * draws.outside
        cross = G[:, None] * fields[None]
        products = Moments(jnp.zeros(()), G[:, None] * fixed[None], cross, G[:, None] * G[None], second)
        population, _ = linear_increments(problem, column, products)
        decay = sgd.ridge * (cross + jnp.swapaxes(cross, 0, 1)) + sgd.ridge**2 * column.Q
        bend = sgd.lr_sample**2 * (G[:, None] * G[None] * squared + decay)
        still = jax.tree.map(lambda leaf: jnp.zeros((*leaf.shape, z.size)), stats.a)
        change = Overlaps(still, jnp.zeros_like(population.M), bend)
        gradient = sgd.lr_sample * (G[:, None] * x[None] + sgd.ridge * F.student[..., None])
        return StepTerms(
            first_order_terms=-problem.vector(population),
            second_order_terms=problem.vector(project_out_norms(step_rates(sgd, problem.t).unit, column, change)),
            gradient=jnp.concatenate([gradient.reshape(-1, z.size), *self._scalar_rows(population.a, z.size)]),
        )

    @staticmethod
    def _scalar_rows(scalars: Scalars, samples: int) -> list[Float[Array, "n samples"]]:
        """Return scalars as rows of one entry per sample, repeating those that all samples share."""
        leaves = jax.tree.leaves(scalars)
        return [jnp.broadcast_to(leaf, (*leaf.shape[:-1], samples)).reshape(-1, samples) for leaf in leaves]

    def derivatives(self, stats):
        """Return norms of each statistic's second derivatives (covariant on the sphere) and third derivatives (zero)."""
        p, still = stats.width, jax.tree.map(jnp.zeros_like, stats.a)
        zero = jnp.zeros_like(stats.M)
        hessian = Overlaps(still, zero, jnp.ones((p, p)) + jnp.eye(p))
        if self.problem.algorithm.sphere:
            hessian = Overlaps(still, jnp.abs(stats.M), (1 + jnp.abs(stats.Q)) * (1 - jnp.eye(p)))
        norms = self.problem.vector(hessian)
        return norms, jnp.zeros_like(norms)


@sample_law_of.register
def _(problem: ProjectionProblem) -> ProjectionSampleLaw:
    span = problem.network.width + problem.target.teachers
    return ProjectionSampleLaw(problem, span, variate_count=span + 1, noise=1)


class SpikeSampleLaw(SampleLaw):
    """Law of one sample of a spiked tensor, in the plane of the spike v and the estimate x, and orthogonal to it."""

    problem: SpikedTensor

    def terms(self, stats: Spike, draws):
        problem, k = self.problem, self.problem.order
        x = jnp.stack([stats.m, jnp.sqrt(stats.r2)])[:, None]
        inward, along = problem.gradient_coefficients(stats)
        noise = contract_noise(k, jnp.broadcast_to(x, draws.points.shape), draws.points, lambda a, b: (a * b).sum(0))
        gradient = problem.lr * (inward * x - along * np.array([[1.0], [0.0]]) - 2 * noise)
        outside = 4 * problem.lr**2 * k * stats.squared_norm ** (k - 1) * draws.outside
        second = jnp.stack([jnp.zeros_like(outside), gradient[1] ** 2 + outside])
        return StepTerms(jnp.stack([gradient[0], 2 * x[1] * gradient[1]]), second, gradient)

    def derivatives(self, stats):
        return jnp.array([0.0, 2.0]), jnp.zeros(2)


@sample_law_of.register
def _(problem: SpikedTensor) -> SpikeSampleLaw:
    return SpikeSampleLaw(problem, span_dimension=2, variate_count=2, noise=2)
