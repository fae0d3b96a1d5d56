"""Where runs start: laws of the statistics at time zero."""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from sgdlimits.errors import BadInput, check_count, check_number
from sgdlimits.level.base import check_dimension
from sgdlimits.problem.base import Problem
from sgdlimits.problem.frame import Frame, frame_of, overlaps_of
from sgdlimits.problem.overlaps import Overlaps, runs_first
from sgdlimits.problem.particles import Particles, particles_of
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.random import Purpose, Stream

MOST_SQUARE = 256
"""Up to this width a random start of the mean-field limit has the units of the p-by-p start, number by number."""


class Start(eqx.Module):
    """A law of the start. The start of a run depends on the seed and the run's number alone."""

    @abc.abstractmethod
    def batch(self, problem: Problem, stream: Stream) -> Overlaps:
        """The statistics of the stream's runs, runs first."""

    def particles(self, problem: Problem, stream: Stream) -> Particles:
        """The units of the stream's runs, each on its own, runs first: for the mean-field limit, without a p-by-p array."""
        return particles_of(self.batch(problem, stream))

    def sample(self, problem: Problem, *, runs: int = 1, seed: int = 0) -> Overlaps:
        """The statistics of `runs` runs, shapes (runs, p), (runs, p, k), (runs, p, p), as `simulate` would draw them."""
        return self.batch(problem, Stream.of(seed, np.arange(check_count("runs", runs))))

    def one(self, problem: Problem, *, seed: int = 0) -> Overlaps:
        """One start, without an axis for runs: pass it to several levels to start them from the same point."""
        return jax.tree.map(lambda leaf: leaf[0], self.sample(problem, seed=seed))


class RandomInit(Start):
    r"""Random weights in R^d, as in the problem's paper, with the exact law of their overlaps at finite d.

    The rows of a p-by-d Gaussian matrix have independent Gaussian coordinates along the k fixed directions, and outside of
    them a Wishart Gram matrix whose triangular factor is normal below the diagonal and chi with d - k - j degrees of freedom
    on it (Bartlett). No vector of length d is made. For `MeanField` no p-by-p array is made either where p is above 256; its
    units then have the same law but not the same numbers.

    Parameters
    ----------
    d : dimension
    scale : standard deviation of sqrt(d) times a weight, or the norm where `unit` holds
    unit : whether each direction is scaled to the norm `scale`
    second : each entry of the second layer

    What is not given comes from the problem (`problem.initial`).

    >>> import sgdlimits as sl
    >>> start = RandomInit(d=10**9).sample(sl.presets.phase_retrieval(width=2), runs=3)
    >>> start.M.shape, bool(abs(start.M).max() < 1e-3)
    ((3, 2, 1), True)
    """

    d: int = eqx.field(static=True, converter=check_dimension)
    scale: float | None = eqx.field(static=True, default=None)
    unit: bool | None = eqx.field(static=True, default=None)
    second: float | None = eqx.field(static=True, default=None)

    def batch(self, problem, stream):
        dof = np.maximum(self.d - problem.target.teachers - np.arange(problem.network.width), 0.0)
        return _gaussian_overlaps(problem.target.gram, jnp.asarray(dof), *self._law(problem), stream)

    def particles(self, problem, stream):
        p, k = problem.network.width, problem.target.teachers
        if p <= MOST_SQUARE:
            return super().particles(problem, stream)
        dof = np.full(p, float(self.d - k))
        return _gaussian_particles(problem.target.gram, jnp.asarray(dof), *self._law(problem), stream)

    def _law(self, problem) -> tuple[Float[Array, "3"], bool]:
        """(scale, second layer, root of d), and whether directions are scaled to norm 1."""
        check_dimension(self.d, problem.target.teachers)
        if self.scale is not None:
            check_number("scale", self.scale, above=0)
        law = problem.initial
        scale = law.scale if self.scale is None else self.scale
        second = law.second if self.second is None else self.second
        unit = law.unit if self.unit is None else self.unit
        return jnp.asarray([scale, second, np.sqrt(self.d)], float), bool(unit)


@eqx.filter_jit
def _gaussian_overlaps(gram: Float[Array, "k k"], dof: Float[Array, " p"], numbers, unit: bool, stream: Stream) -> Overlaps:
    """Overlaps of p vectors of standard normal numbers, scaled; `dof` counts the dimensions left for each (Bartlett)."""
    p, k = dof.size, gram.shape[0]
    scale, second, root_d = numbers
    normal = stream.normal(Purpose.START, p * k + p * p)[0]
    diagonal = jnp.sqrt(stream.chi_square(Purpose.START_CHI, dof)[0])
    below = np.tril(np.ones((p, p)), -1).T * (dof > 0)[:, None]
    m, T = normal[: p * k].reshape(p, k, -1), normal[p * k :].reshape(p, p, -1) * below[:, :, None]
    T = T.at[np.arange(p), np.arange(p)].set(diagonal)
    factor = scale / (jnp.sqrt((m**2).sum(1) + (T**2).sum(0)) if unit else root_d * jnp.ones_like(diagonal))
    frame = Frame(second * jnp.ones_like(diagonal), m * factor[:, None], T * factor[None])
    return runs_first(overlaps_of(frame, jnp.linalg.cholesky(gram)))


@eqx.filter_jit
def _gaussian_particles(gram: Float[Array, "k k"], dof: Float[Array, " p"], numbers, unit: bool, stream: Stream) -> Particles:
    """What `_gaussian_overlaps` says about each vector alone, where each has `dof` dimensions outside the fixed ones."""
    p, k = dof.size, gram.shape[0]
    scale, second, root_d = numbers
    m = stream.normal(Purpose.START, p * k)[0].reshape(p, k, -1)
    square = (m**2).sum(1) + stream.chi_square(Purpose.START_CHI, dof)[0]
    factor = scale / (jnp.sqrt(square) if unit else root_d * jnp.ones_like(square))
    M = jnp.einsum("jsR,rs->jrR", m * factor[:, None], jnp.linalg.cholesky(gram))
    return runs_first(Particles(second * jnp.ones_like(square), M, square * factor**2))


@eqx.filter_jit
def _normals(stream: Stream, count: int) -> Float[Array, "count runs"]:
    return stream.normal(Purpose.START, count)[0]


class OrthogonalInit(Start):
    r"""Orthonormal students, Q = 1, with independent overlaps :math:`M_{jr} \sim N(0, \text{spread}^2)`.

    >>> import sgdlimits as sl
    >>> OrthogonalInit(spread=0.01).sample(sl.presets.quadratic_network(width=3), runs=2).Q.shape
    (2, 3, 3)
    """

    spread: float = eqx.field(static=True)
    second: float | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check_number("spread", self.spread, at_least=0)

    def batch(self, problem, stream):
        units, p = self.particles(problem, stream), problem.network.width
        stats = Overlaps(units.a, units.M, jnp.tile(jnp.eye(p), (stream.runs.size, 1, 1)))
        _check_exists(stats, problem, f"OrthogonalInit(spread={self.spread:g})", "Give a smaller spread.")
        return stats

    def particles(self, problem, stream):
        p, k, runs = problem.network.width, problem.target.teachers, stream.runs.size
        M = self.spread * _normals(stream, p * k).reshape(p, k, runs)
        return Particles(_second(self.second, problem, runs), jnp.moveaxis(M, -1, 0), jnp.ones((runs, p)))


class FixedInit(Start):
    r"""Students of norm 1 with the given overlap and otherwise orthogonal to each other: :math:`Q - MP^{-1}M^\top` is diagonal.

    Parameters
    ----------
    overlap : M, one number for all entries or an array that broadcasts to (p, k)

    >>> import sgdlimits as sl
    >>> FixedInit(0.5).one(sl.presets.phase_retrieval(width=2)).Q.tolist()
    [[1.0, 0.25], [0.25, 1.0]]
    """

    overlap: Float[Array, "..."] = eqx.field(converter=lambda overlap: jnp.asarray(overlap, float))
    second: float | None = eqx.field(static=True, default=None)

    def batch(self, problem, stream):
        one = jax.tree.map(lambda leaf: leaf[0], self.particles(problem, stream))
        inside = one.M @ jnp.linalg.solve(problem.target.gram, one.M.T)
        Q = inside + jnp.diag(1 - jnp.diagonal(inside))
        stats = _repeat(Overlaps(one.a, one.M, Q), stream.runs.size)
        _check_exists(stats, problem, "FixedInit", "Give smaller overlaps.")
        return stats

    def particles(self, problem, stream):
        p, k, runs = problem.network.width, problem.target.teachers, stream.runs.size
        if not np.isfinite(self.overlap).all():
            raise BadInput(f"overlap must be finite; got {np.asarray(self.overlap).tolist()}. Give finite overlaps.")
        try:
            M = jnp.broadcast_to(self.overlap, (p, k))
        except ValueError:
            raise BadInput(
                f"overlap must broadcast to shape ({p}, {k}); got shape {self.overlap.shape}. Give a number or such an array."
            ) from None
        return _repeat(Particles(_second(self.second, problem, 1)[0], M, jnp.ones(p)), runs)


class Given(Start):
    """Statistics as they are: of one run, used for all, or of each run."""

    stats: Overlaps | Particles

    def batch(self, problem, stream):
        if isinstance(self.stats, Particles):
            raise BadInput(
                "Particles say nothing about pairs of units, which only MeanField() does without. Give Overlaps(a, M, Q)."
            )
        return self._of_runs(self.stats, stream)

    def particles(self, problem, stream):
        return self._of_runs(particles_of(self.stats), stream)

    @staticmethod
    def _of_runs(stats: PyTree, stream: Stream) -> PyTree:
        if np.ndim(stats.a) == 1:
            return _repeat(stats, stream.runs.size)
        given, last = stats.a.shape[0], int(stream.runs.max())
        if last >= given:
            raise BadInput(
                f"the start has {given} runs, but run {last} was asked for. Give statistics of one run, or runs={given}."
            )
        return jax.tree.map(lambda leaf: leaf[stream.runs], stats)


def as_start(start: Start | Overlaps | Particles) -> Start:
    """A start from an init object or from explicit statistics."""
    if isinstance(start, Start):
        return start
    if isinstance(start, (Overlaps, Particles)):
        return Given(start)
    raise BadInput(
        f"start must be RandomInit, OrthogonalInit, FixedInit or statistics; got {type(start).__name__}. "
        "Give, for instance, RandomInit(d=3000) or Overlaps(a, M, Q)."
    )


def _repeat(one: PyTree, runs: int) -> PyTree:
    """The statistics of one run for each of several."""
    return jax.tree.map(lambda leaf: jnp.tile(leaf, (runs, *(1 for _ in leaf.shape))), one)


def _second(second: float | None, problem: ProjectionProblem, runs: int) -> Float[Array, "runs p"]:
    return jnp.full((runs, problem.network.width), problem.initial.second if second is None else second)


def _check_exists(stats: Overlaps, problem: ProjectionProblem, what: str, remedy: str) -> None:
    try:
        frame_of(stats, problem.frame, problem.network.width)
    except BadInput:
        raise BadInput(f"{what} gives overlaps that no weights of norm 1 have. {remedy}") from None
