"""Starts of runs: probability laws of the statistics at time zero."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import equinox as eqx
import jax
import numpy as np
import scipy
from jaxtyping import Array, Float, PyTree
from numpy.typing import ArrayLike

from sgdlimits.checks import array, second_layer
from sgdlimits.domain import Count, Fraction, NotNegative, Seed, Size, checked
from sgdlimits.errors import BadInput, check_dimension, check_share
from sgdlimits.kernel.random import Purpose, Stream
from sgdlimits.part import Part
from sgdlimits.problem.base import Problem
from sgdlimits.size import check_memory
from sgdlimits.statistics.blocks import block_factor
from sgdlimits.statistics.frame import PSD_TOLERANCE, cholesky_factor
from sgdlimits.statistics.overlaps import Overlaps, Scalars, as_scalars
from sgdlimits.statistics.particles import Particles, particles_of
from sgdlimits.statistics.trees import as_floats, count_runs, repeat_run, select_run

MAX_GRAM_WIDTH = 256
"""Maximum width p at which a random start of the mean-field limit draws the p-by-p Gram matrix of p units, as other levels do.

Up to this width the units are bit for bit those of the other levels; beyond it, an array of p^2 entries would be too large.
"""


def _as_second_layer(second: Any) -> Any:
    """Convert a second layer to its stored form: one number, an array over units, a law, or a mapping of scalars by name."""
    if isinstance(second, Mapping):
        return as_scalars(second)
    return as_floats(second) if isinstance(second, (list, tuple, np.ndarray, jax.Array)) else second


@checked
class Bernoulli(Part):
    """Law of a second layer of independent entries with two possible values, for `RandomInit(second=...)`.

    Parameters
    ----------
    share : probability of `high`
    low, high : the two values

    >>> import sgdlimits as sl
    >>> start = sl.RandomInit(d=100, second=sl.Bernoulli(0.5))
    >>> sorted({float(a) for a in start.one(sl.presets.phase_retrieval(width=9)).a})
    [0.0, 1.0]
    """

    share: Fraction = eqx.field(static=True, default=0.5)
    low: float = eqx.field(static=True, default=0.0)
    high: float = eqx.field(static=True, default=1.0)

    def draw(self, stream: Stream, width: int) -> Float[np.ndarray, "runs width"]:
        """Draw the entries of the second layer for the runs of a stream, runs first."""
        # ndtr(-normal) is uniform on (0, 1)
        normal = np.asarray(stream.normal(Purpose.START_SECOND, width)[0]).T
        return np.where(scipy.special.ndtr(-normal) < check_share("share", self.share), self.high, self.low)


class Start(Part):
    """Law of the initial statistics, from which each run draws its start by the seed and the index of the run."""

    @abc.abstractmethod
    def overlaps(self, problem: Problem, stream: Stream) -> Overlaps:
        """Draw the initial overlaps of each run's trained directions from its random stream.

        Arrays have the runs on their first axis.
        """

    def batch(self, problem: Problem, stream: Stream) -> PyTree:
        """Draw the initial statistics of each run of a problem from its random stream.

        Arrays have the runs on their first axis.
        """
        return problem.coordinates.from_overlaps(self.overlaps(problem, stream))

    def particles(self, problem: Problem, stream: Stream) -> Particles:
        """Draw the initial statistics of each run in the mean-field limit from its random stream.

        Arrays have the runs on their first axis.
        """
        return particles_of(self.batch(problem, stream))

    @checked
    def sample(self, problem: Problem, *, runs: Size = 1, seed: Seed = 0) -> PyTree:
        """Draw the initial statistics of several runs, as `simulate` draws them; arrays have the runs on their first axis."""
        check_memory([("runs", runs), ("numbers", problem.numerics.size)], "Take fewer runs, or a smaller width.")
        return self.batch(problem, Stream.from_seed(seed, np.arange(runs)))

    def one(self, problem: Problem, *, seed: int = 0) -> PyTree:
        """Draw the initial statistics of one run, without an axis of runs, for instance to start several levels alike."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[0], self.sample(problem, seed=seed))


@checked
class RandomInit(Start):
    r"""Random weights in R^d, as in the paper of the problem, with the exact law of their overlaps at finite d.

    The p rows of a p-by-d Gaussian matrix have independent Gaussian coordinates along the k fixed directions. The components
    orthogonal to these directions have a Wishart Gram matrix, whose triangular factor has normal entries below the diagonal,
    and on it, in row j = 0, ..., p - 1, chi variates with d - k - j degrees of freedom (Bartlett). No vector of length d is
    drawn. For `MeanField` with p above 256, no p-by-p array is drawn either; units then have the same law, but other values
    than at the other levels.

    Parameters
    ----------
    d : dimension
    scale : standard deviation of sqrt(d) times a weight; with `unit`, the norm of each unit's weights
    unit : whether the weights of each unit are scaled to the norm `scale`
    second : entries of the second layer: one number, one for each unit, or a law such as `Bernoulli(0.5)`; for a network with
        named scalars, a dictionary of their values
    positive : probability with which each entry of the second layer keeps its sign; the others are negated. None keeps all

    Arguments that are not given are taken from the problem (`problem.initial`).

    >>> import sgdlimits as sl
    >>> start = RandomInit(d=10**9).sample(sl.presets.phase_retrieval(width=2), runs=3)
    >>> start.M.shape, bool(abs(start.M).max() < 1e-3)
    ((3, 2, 1), True)
    """

    d: Count = eqx.field(static=True)
    scale: NotNegative | None = eqx.field(static=True, default=None)
    unit: bool | None = eqx.field(static=True, default=None)
    second: Annotated[Any, second_layer] = eqx.field(converter=_as_second_layer, default=None)
    positive: Fraction | None = eqx.field(static=True, default=None)

    if TYPE_CHECKING:  # the types that the converters accept

        def __init__(
            self,
            d: int,
            scale: float | None = ...,
            unit: bool | None = ...,
            second: ArrayLike | Bernoulli | Mapping[str, Any] | None = ...,
            positive: float | None = ...,
        ) -> None: ...

    def overlaps(self, problem, stream):
        p, k, gram = problem.directions.width, problem.directions.fixed, problem.directions.gram
        if problem.directions.sizes is not None:
            return self._overlaps_in_blocks(problem, stream)
        scale, unit = self.scale_and_norm(problem)
        dof = np.maximum(self.d - k - np.arange(p), 0.0)  # with fewer dimensions than directions, the last columns of T are 0
        normal = np.moveaxis(stream.normal(Purpose.START, p * k + p * p)[0], -1, 0)
        diagonal = np.sqrt(stream.chi_square(Purpose.START_CHI, dof)[0]).T
        m, T = normal[:, : p * k].reshape(-1, p, k), np.swapaxes(normal[:, p * k :].reshape(-1, p, p), 1, 2)
        # Bartlett factor: normal variates below the diagonal, chi variates on it
        T = np.tril(T, -1) * (dof > 0) + diagonal[:, :, None] * np.eye(p)
        size = np.sqrt((m**2).sum(2) + (T**2).sum(2))[:, :, None] if unit else np.sqrt(self.d)
        m, T = m / size, T / size
        Q = m @ np.swapaxes(m, 1, 2) + T @ np.swapaxes(T, 1, 2)
        return Overlaps(self._draw_second_layer(problem, stream), scale * (m @ cholesky_factor(gram).T), scale**2 * Q)

    def _overlaps_in_blocks(self, problem, stream) -> Overlaps:
        """Draw the initial overlaps in each block of coordinates, whose weights are independent."""
        directions, (scale, unit) = problem.directions, self.scale_and_norm(problem)
        p, k, sizes = directions.width, directions.fixed, np.array(directions.sizes(self.d))
        if sizes.min() < k and np.any(scale):  # weights of zero need no room
            raise BadInput(
                f"d = {self.d} leaves {sizes.min()} dimensions for a block with {k} fixed directions. Use a larger d."
            )
        B, dof = len(sizes), np.maximum(sizes[:, None] - k - np.arange(p), 0.0)
        normal = np.moveaxis(np.asarray(stream.normal(Purpose.START, B * p * (k + p))[0]), -1, 0).reshape(-1, B, p, k + p)
        diagonal = np.sqrt(np.asarray(stream.chi_square(Purpose.START_CHI, dof.ravel())[0])).T.reshape(-1, B, p)
        m, T = normal[..., :k], np.tril(normal[..., k:], -1) * (dof > 0)[:, None]
        T = T + diagonal[..., None] * np.eye(p)
        Q = m @ np.swapaxes(m, -1, -2) + T @ np.swapaxes(T, -1, -2)
        norms = np.sqrt(np.einsum("rbjj->rj", Q)) if unit else np.full((len(Q), p), np.sqrt(self.d))
        M = scale * np.einsum("rbps,bks->rbpk", m, block_factor(np.asarray(directions.gram))) / norms[:, None, :, None]
        Q = scale**2 * Q / (norms[:, None, :, None] * norms[:, None, None, :])
        return Overlaps(self._draw_second_layer(problem, stream), M, Q)

    def particles(self, problem, stream):
        p, k, gram = problem.directions.width, problem.directions.fixed, problem.directions.gram
        _check_no_blocks(problem, "MeanField()")
        if p <= MAX_GRAM_WIDTH:
            return super().particles(problem, stream)
        scale, unit = self.scale_and_norm(problem)
        m = np.moveaxis(stream.normal(Purpose.START, p * k)[0].reshape(p, k, -1), -1, 0)
        # the squared norm orthogonal to the fixed directions is chi-square; the products of units are not needed
        square = (m**2).sum(2) + stream.chi_square(Purpose.START_CHI, np.full(p, float(self.d - k)))[0].T
        size = np.sqrt(square) if unit else np.full_like(square, np.sqrt(self.d))
        M = scale * ((m / size[:, :, None]) @ cholesky_factor(gram).T)
        return Particles(self._draw_second_layer(problem, stream), M, scale**2 * square / size**2)

    def scale_and_norm(self, problem) -> tuple[Any, bool]:
        """Return the scale of the random weights, and whether each unit's weights have exactly this norm."""
        check_dimension(self.d, problem.directions.fixed)
        law = problem.directions.initial
        scale = law.scale if self.scale is None else self.scale
        unit = law.unit if self.unit is None else self.unit
        return scale, bool(unit)

    def _draw_second_layer(self, problem, stream) -> Any:
        """Draw the second layer, or the network's scalars by name, of each run from its random stream."""
        law, runs = problem.directions.initial, stream.runs.size
        if isinstance(self.second, Bernoulli):
            return self._draw_by_law(self.second, problem, stream)
        constant = _initial_second_layer(self.second, problem, runs)
        if self.positive is not None:
            return self._with_random_signs(constant, law.second_spread, stream)
        if self.second is not None or law.second_spread == 0:
            return constant
        if not isinstance(constant, dict):
            return constant + law.second_spread * stream.normal(Purpose.START_SECOND, constant.shape[1])[0].T
        if "a" not in constant:
            raise BadInput(
                f"second_spread needs a scalar named a; the scalars are {', '.join(constant)}. Give explicit statistics."
            )
        normal = stream.normal(Purpose.START_SECOND, constant["a"][0].size)[0].T
        return {**constant, "a": constant["a"] + law.second_spread * normal.reshape(constant["a"].shape)}

    def _draw_by_law(self, law: Bernoulli, problem, stream) -> Any:
        """Draw the second layer from a probability law of its entries."""
        if problem.directions.scalars is not None or self.positive is not None:
            raise BadInput(
                "Bernoulli supports neither positive= nor named scalars. Give it low= and high=, or give arrays by name."
            )
        return law.draw(stream, problem.directions.width)

    def _with_random_signs(self, constant: Any, spread: float, stream) -> Any:
        """Return the second layer `constant` with the signs of random entries reversed.

        Each entry keeps its sign with probability `positive`, independently of all others.
        """
        share = check_share("positive", self.positive)
        if isinstance(constant, dict) or (spread and self.second is None):
            raise BadInput(
                "positive= supports neither a random second layer nor named scalars. Give second=1.0, or statistics."
            )
        normal = stream.normal(Purpose.START_SECOND, constant.shape[1])[0].T
        # ndtr(-normal) is uniform on (0, 1)
        return np.where(scipy.special.ndtr(-normal) < share, constant, -constant)


@checked
class OrthogonalInit(Start):
    r"""Orthonormal students, whose overlaps with the fixed directions are independent Gaussian variables.

    The students have the Gram matrix :math:`Q = 1`; the overlap of student j with fixed direction r is
    :math:`M_{jr} \sim N(0, \text{spread}^2)`.

    >>> import sgdlimits as sl
    >>> OrthogonalInit(spread=0.01).sample(sl.presets.quadratic_network(width=3), runs=2).Q.shape
    (2, 3, 3)
    """

    spread: NotNegative = eqx.field(static=True)
    second: Annotated[Any, second_layer] = eqx.field(converter=_as_second_layer, default=None)

    def overlaps(self, problem, stream):
        units, p = self.particles(problem, stream), problem.directions.width
        stats = Overlaps(units.a, units.M, as_floats(np.tile(np.eye(p), (stream.runs.size, 1, 1))))
        m = np.linalg.solve(cholesky_factor(problem.directions.gram), np.swapaxes(units.M, -1, -2))
        m = np.clip(np.nan_to_num(m, nan=2.0), -2.0, 2.0)  # entries above 1 are refused anyway, and large ones overflow
        largest = np.linalg.norm(m, 2, axis=(-2, -1)) ** 2  # Q - M P^-1 M^T has the smallest eigenvalue 1 - largest
        _check_weights_exist(largest, f"OrthogonalInit(spread={self.spread:g})", "Give a smaller spread.")
        return stats

    def particles(self, problem, stream):
        p, k, runs = problem.directions.width, problem.directions.fixed, stream.runs.size
        _check_no_blocks(problem, type(self).__name__)
        M = self.spread * np.asarray(stream.normal(Purpose.START, p * k)[0]).reshape(p, k, runs)
        return Particles(
            _initial_second_layer(self.second, problem, runs), *map(as_floats, (np.moveaxis(M, -1, 0), np.ones((runs, p))))
        )


@checked
class FixedInit(Start):
    r"""Students of norm 1 with given overlaps with the fixed directions, and orthogonal to each other otherwise.

    :math:`Q - MP^{-1}M^\top` is diagonal, where Q has the overlaps of students, P those of fixed directions, and M those of
    students with fixed directions.

    Parameters
    ----------
    overlap : M, one number for all entries or an array that broadcasts to (p, k)

    >>> import sgdlimits as sl
    >>> FixedInit(0.5).one(sl.presets.phase_retrieval(width=2)).Q.tolist()
    [[1.0, 0.25], [0.25, 1.0]]
    """

    overlap: Annotated[Float[Array, "..."], array()] = eqx.field(converter=as_floats)
    second: Annotated[Any, second_layer] = eqx.field(converter=_as_second_layer, default=None)

    if TYPE_CHECKING:  # the types that the converters accept

        def __init__(self, overlap: ArrayLike, second: ArrayLike | Mapping[str, Any] | None = ...) -> None: ...

    def overlaps(self, problem, stream):
        one = select_run(self.particles(problem, stream))
        with np.errstate(over="ignore", invalid="ignore"):  # _check_weights_exist reports overlaps that overflow
            inside = one.M @ np.linalg.solve(problem.directions.gram, one.M.T)
            Q = inside + np.diag(1 - np.diagonal(inside))
        _check_weights_exist(np.diagonal(inside), "FixedInit", "Give smaller overlaps.")
        return repeat_run(Overlaps(one.a, one.M, Q), stream.runs.size)

    def particles(self, problem, stream):
        p, k, runs = problem.directions.width, problem.directions.fixed, stream.runs.size
        _check_no_blocks(problem, type(self).__name__)
        if not np.isfinite(self.overlap).all():
            raise BadInput(f"overlap must be finite; got {np.asarray(self.overlap).tolist()}. Give finite overlaps.")
        try:
            M = np.broadcast_to(self.overlap, (p, k))
        except ValueError:
            raise BadInput(
                f"overlap must broadcast to shape ({p}, {k}); got shape {self.overlap.shape}. Give one number, such as 0.1."
            ) from None
        second = select_run(_initial_second_layer(self.second, problem, 1))
        return repeat_run(Particles(second, as_floats(M), as_floats(np.ones(p))), runs)


class Given(Start):
    """Start from explicit initial statistics, either of one run, which all runs share, or of each run."""

    stats: PyTree

    def batch(self, problem, stream):
        return (
            super().batch(problem, stream)
            if isinstance(self.stats, (Overlaps, Particles))
            else self._statistics_of_runs(stream)
        )

    def overlaps(self, problem, stream):
        if isinstance(self.stats, Particles):
            raise BadInput(
                "Particles have no overlaps of pairs of units, which all levels but MeanField() need. Give Overlaps(a, M, Q)."
            )
        return self._statistics_of_runs(stream)

    def particles(self, problem, stream):
        return particles_of(self._statistics_of_runs(stream))

    def _statistics_of_runs(self, stream: Stream) -> PyTree:
        """Return the given statistics for the requested runs, with the runs on the first axis."""
        given, last = count_runs(self.stats), int(stream.runs.max())
        if given is None:
            return repeat_run(self.stats, stream.runs.size)
        if last >= given:
            raise BadInput(
                f"the start has only {given} runs, but run {last} is needed. Give statistics of one run, or runs={given}."
            )
        if any(np.shape(leaf)[:1] != (given,) for leaf in jax.tree.leaves(self.stats)):
            shapes = sorted({np.shape(leaf)[:1] for leaf in jax.tree.leaves(self.stats)})
            raise BadInput(f"the arrays of the start have different numbers of runs, {shapes}. Give all for the same runs.")
        return jax.tree.map(lambda leaf: np.asarray(leaf)[stream.runs], self.stats)


STARTS = {"random": RandomInit, "orthogonal": OrthogonalInit, "fixed": FixedInit}
"""Dictionary from the names of starts on the command line to their classes."""


def as_start(start: Start | PyTree) -> Start:
    """Convert the argument `start` of `simulate`, a law of the initial statistics or explicit statistics, to a `Start`."""
    if isinstance(start, Start):
        return start
    if isinstance(start, eqx.Module) and hasattr(type(start), "dims"):
        return Given(start)
    raise BadInput(
        f"start must be RandomInit, OrthogonalInit, FixedInit or statistics; got {type(start).__name__}. "
        "Give, for instance, RandomInit(d=3000) or Overlaps(a, M, Q)."
    )


def _initial_second_layer(second: Any, problem: Problem, runs: int) -> Scalars:
    """Return the initial second layer, or scalars by name, of several runs: `second` if given, else the problem's values."""
    law, scalars = problem.directions.initial, problem.directions.scalars
    if scalars is None:
        if isinstance(second, dict):
            raise BadInput(f"second must be one number, as the network has no named scalars; got {second}. Give one number.")
        width, one = problem.directions.width, law.second if second is None else second
        each = np.asarray(np.nan if isinstance(one, (str, Part)) else one, float)
        if each.shape not in ((), (width,)) or not np.isfinite(each).all():
            raise BadInput(
                f"second must be one number or {width} of them, one for each unit, all finite; got {one}. Give, for "
                f"instance, second=1.0."
            )
        return np.tile(np.broadcast_to(each, (width,)), (runs, 1))
    given = {} if second is None else second if isinstance(second, dict) else {"a": second}
    if not set(given) <= set(scalars):
        raise BadInput(
            f"second has {', '.join(given)}, but the network's scalars are {', '.join(scalars)}. "
            "Give each scalar's value, by name."
        )
    for name, value in given.items():
        if np.shape(value) not in ((), np.shape(scalars[name])):
            raise BadInput(
                f"second[{name!r}] must be one number or of shape {np.shape(scalars[name])}; got shape {np.shape(value)}. "
                f"Give one number, or an array of shape {np.shape(scalars[name])}."
            )
    value = lambda name: np.broadcast_to(np.asarray(given.get(name, scalars[name]), float), np.shape(scalars[name]))
    return {name: np.tile(value(name), (runs, *(1 for _ in np.shape(scalars[name])))) for name in scalars}


def _check_weights_exist(squares: np.ndarray, what: str, remedy: str) -> None:
    """Raise `BadInput` unless the squared norms of all projections onto the span of the fixed directions are at most 1.

    Otherwise no weights of norm 1 have the overlaps of the start. `what` names the start in the message.
    """
    if not (squares <= 1 + PSD_TOLERANCE).all():
        raise BadInput(f"{what} gives overlaps that no weights of norm 1 have. {remedy}")


def _check_no_blocks(problem: Problem, what: str) -> None:
    """Raise `BadInput` if the inputs of a problem have blocks of variances, which the start named `what` does not support."""
    if problem.directions.sizes is not None:
        raise BadInput(
            f"{what} does not support inputs with blocks of variances. Start from RandomInit(d), or from Overlaps(a, M, Q) "
            "with the blocks on the first axis of M and Q, at another level."
        )
