r"""The exact chain of the summary statistics at finite dimension.

Given the statistics, one step of SGD in R^d needs of the input x only its coordinates in the span of the fixed and the trained
directions, which are Gaussian, and the norm of the rest, which is a chi-square number: the statistics are a Markov chain, and
a step costs the same at d = 10^3 and d = 10^9. The rests of a batch of inputs have a Wishart Gram matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from sgdlimits.errors import BadInput, check_dimension
from sgdlimits.level.base import Level, platform
from sgdlimits.level.process import Marching, Moment, Process
from sgdlimits.problem.base import Problem
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.random import Purpose, Stream
from sgdlimits.statistics.frame import Frame, Loading, frame_of, overlaps_of
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import number_array, runs_first


class Chain(Level):
    """The exact law of SGD's statistics in dimension `d`, at a cost that does not contain d.

    Parameters
    ----------
    d : dimension, from k up to any size; p + k > d is allowed

    See Also
    --------
    sgdlimits.SGD : the same process with the weights in R^d
    sgdlimits.SDE : its approximation by a diffusion
    sgdlimits.ODE : its limit for large d
    """

    name: ClassVar[str] = "chain"
    d: int = eqx.field(static=True, converter=check_dimension)

    def bind(self, problem, start, first):
        """On a processor few enough runs that the states stay in a core's cache; on an accelerator enough to fill it."""
        limit, numbers = (8192, 2**16) if platform() == "cpu" else (2**20, 2**24)
        most = int(min(limit, max(64, numbers / (problem.size * problem.samples_per_step))))
        return Marching(self, problem, most, self.d, chain_process(problem, self.d))


@singledispatch
def chain_process(problem: Problem, d: int) -> Process:
    """The exact chain of a problem; register one for a new kind of problem."""
    raise BadInput(f"no exact chain is known for {type(problem).__name__}. Use ODE(), or register one with chain_process.")


class Samples(NamedTuple):
    """One step's b inputs as the chain sees them: coordinates in the frame, rests, label noise, classes.

    Of the rests r = min(b, p) combinations matter. `outside` is the diagonal, squared, of the triangular factor of their Gram
    matrix, and `below` what is below the diagonal, row by row (Bartlett).
    """

    inside: Float[Array, "k b runs"]
    along: Float[Array, "p b runs"]
    outside: Float[Array, "r runs"]
    below: Float[Array, "n runs"]
    z: Float[Array, "b runs"]
    c: Int[Array, "b runs"]


class FrameChain(Process):
    r"""The chain of a projection problem, on coordinates (see `sgdlimits.statistics.frame`).

    The b inputs of a step have coordinates g (k-by-b) along the fixed directions, h (p-by-b) along those that T uses, and rests
    outside. With :math:`u_j \leftarrow \kappa u_j + \sum_i C_{ji} x_i`, :math:`C = -(\text{lr}/db)\, G`,

    .. math:: m \leftarrow \kappa m + Cg^\top, \qquad
              TT^\top \leftarrow (\kappa T + Ch^\top)(\kappa T + Ch^\top)^\top + KK^\top ,

    where :math:`KK^\top` is the Gram matrix of what the rests add. C does not depend on them, so that this is
    :math:`CWC^\top` with a Wishart matrix W. The new T is the triangular factor of :math:`[\kappa T + Ch^\top, K]`, without
    forming Q: `_move_by_one` for one input, `_move_by_many` for several.
    """

    problem: ProjectionProblem
    frame: Float[Array, "k k"]
    d: Float[Array, ""]
    free: Float[Array, " p"] | None
    block: int = eqx.field(static=True)

    def __init__(self, problem: ProjectionProblem, d: int) -> None:
        p, k = problem.network.width, problem.target.teachers
        room = check_dimension(d, k) - k
        self.problem, self.frame, self.d = problem, problem.frame, number_array(d)
        self.free = None if room >= p else number_array(np.arange(p) < room)
        self.block = max(1, min(64, 256 // (problem.algorithm.batch * (p + k + 2))))

    @property
    def small(self):
        return self.problem.network.width <= 2

    @property
    def patience(self):
        """A sixteenth of a unit of t."""
        return self.d / (16 * self.problem.algorithm.batch)

    @property
    def room(self) -> int:
        """How many directions lie outside the span of the fixed ones, or p where that is fewer."""
        p = self.problem.network.width
        return p if self.free is None else int(self.free.sum())

    def start(self, stats: Overlaps) -> Frame:
        return frame_of(stats, self.frame, self.room)

    def draw(self, stream: Stream) -> Samples:
        problem, b = self.problem, self.problem.algorithm.batch
        p, k, sigma = problem.network.width, problem.target.teachers, problem.data.sigma
        column = np.tril_indices(min(b, p), -1)[1]
        normal = stream.normal(Purpose.STEP, (k + p + 1) * b + column.size)
        inside, along, z, below = jnp.split(normal, np.cumsum([k, p, 1]) * b, axis=1)
        inside, along = (part.reshape(stream.steps, -1, b, stream.runs.size) for part in (inside, along))
        dof = jnp.maximum(self.d - k - p - np.arange(min(b, p)), 0.0)
        outside = stream.chi_square(Purpose.CHI, dof)
        below = below * (dof[column] > 0)[:, None]
        along = along if self.free is None else along * self.free[:, None, None]
        c = problem.data.draw_class(stream, b)
        centre = jnp.moveaxis(problem.data.centre(self.frame, c), 0, 1)
        return Samples(centre + sigma * inside, sigma * along, sigma**2 * outside, sigma * below, z, c)

    def step(self, state: Frame, x: Samples, now: Moment) -> Frame:
        problem = self.problem.at(now.t)
        sgd = problem.algorithm
        keep = 1 - sgd.lr * sgd.ridge / self.d
        Th, TT, move = (_move_by_one if sgd.batch == 1 else _move_by_many)(state.T, x)
        fields = (state.m[:, :, None] * x.inside[None]).sum(1) + Th
        G, second = problem.model.gradient(fields, self._fixed(x), jnp.broadcast_to(state.a[:, None], fields.shape), x.z, x.c)
        C = -(sgd.lr_sample / self.d) * G
        inside = (C[:, None] * x.inside[None]).sum(2)
        m = keep * state.m + inside
        T, outside = move(keep, C)
        if sgd.sphere:
            norm = (state.m**2).sum(1) + TT
            change = (keep**2 * norm - 1) + 2 * keep * (C * fields).sum(1) + (inside**2).sum(1) + outside
            root = jnp.sqrt(1 + change)
            shrink = -change / (root * (1 + root))
            m, T = m + m * shrink[:, None], T + T * shrink[None]
        if sgd.lr_second is None:
            return Frame(state.a, m, T)
        return Frame(state.a - (sgd.lr_second / self.d) * (second.mean(1) + sgd.ridge * state.a), m, T)

    def statistics(self, state: Frame) -> Overlaps:
        return runs_first(overlaps_of(state, self.frame))

    def risk(self, state: Frame) -> Float[Array, " runs"]:
        k, p = self.problem.target.teachers, self.problem.network.width
        fixed = jnp.concatenate([self.frame, jnp.zeros((k, p))], axis=1)

        def one(run: Frame):
            return self.problem.rule.risk_of_factor(
                self.problem.model, run.a, Loading(jnp.concatenate([run.m, run.T.T], axis=1), fixed)
            )

        return self.problem.over_runs(one, runs_first(state))

    def _fixed(self, x: Samples) -> Float[Array, "k b runs"]:
        return (self.frame[:, :, None, None] * x.inside[None]).sum(1)


@chain_process.register
def _(problem: ProjectionProblem, d: int) -> FrameChain:
    return FrameChain(problem, d)


Move = Callable[[Float[Array, ""], Float[Array, "p b runs"]], tuple[Float[Array, "p p runs"], Float[Array, "p runs"]]]
"""From kappa and C to the new T, and to the squared length of what was added to each row."""


def _move_by_one(T: Float[Array, "p p runs"], x: Samples) -> tuple[Float[Array, "p 1 runs"], Float[Array, "p runs"], Move]:
    r"""Th for one input, the row sums of T squared, and the move, in two sweeps over the columns.

    With a rest of length :math:`\chi` the move is to :math:`[\kappa T + ch^\top, \chi c]`: rotating :math:`(h, \chi)` onto one
    axis keeps T triangular and leaves one vector to add, which `_append` rotates in.
    """
    turned, Th, squares, rest = _rotate(T, x.along[:, 0], x.outside[0])
    length = jnp.sqrt(rest)
    inverse = jnp.where(rest > 0, 1 / jnp.where(rest > 0, length, 1.0), 0.0)

    def move(keep, C):
        c = C[:, 0]
        return _append(keep * turned, keep * Th * inverse + c * length), c * c * rest

    return Th[:, None], squares, move


def _move_by_many(T: Float[Array, "p p runs"], x: Samples) -> tuple[Float[Array, "p b runs"], Float[Array, "p runs"], Move]:
    r"""The same for several inputs, by Gram-Schmidt on the rows, at a cost that grows as b.

    Given C, what the rests add are p Gaussian vectors with covariance :math:`CC^\top`. With :math:`CC^\top = RR^\top` for an R
    of r = min(b, p) columns their Gram matrix is :math:`KK^\top`, K = RA, with Bartlett's triangular factor A of r vectors.
    """
    p, b, _ = x.along.shape
    squares = _contract(T, T)

    def move(keep, C):
        each = jnp.swapaxes(C, 0, 1)
        R = each if b <= p else _triangular(each)
        K = _contract(_bartlett(x)[:, :, None], R[:, None])
        along = _contract(jnp.swapaxes(x.along, 0, 1)[:, :, None], each[:, None])
        return _triangular(jnp.concatenate([keep * T + along, K])), _contract(along, along) + _contract(K, K)

    return _contract(T[:, :, None], x.along[:, None]), squares, move


def _bartlett(x: Samples) -> Float[Array, "r r runs"]:
    """The triangular factor A of the rests, row by row."""
    r = x.outside.shape[0]
    A = jnp.zeros((r, *x.outside.shape)).at[np.diag_indices(r)].set(jnp.sqrt(x.outside))
    return A.at[np.tril_indices(r, -1)].set(x.below)


def _triangular(X: Float[Array, "n p runs"]) -> Float[Array, "p p runs"]:
    """The columns of the triangular factor of a matrix with p rows and columns X, by Gram-Schmidt on the rows.

    Each row is as exact as its own length allows, however long the others are.
    """
    rows = jnp.arange(X.shape[1])

    def column(X, j):
        row = X[:, j, None]
        products = _contract(X, row)
        square = products[j]
        inverse = jnp.where(square > 0, lax.rsqrt(jnp.where(square > 0, square, 1.0)), 0.0)
        T_j = jnp.where(rows[:, None] >= j, products * inverse, 0.0)
        return X - row * inverse * T_j, T_j

    return lax.scan(column, X, rows)[1]


def _contract(left: Float[Array, "n ..."], right: Float[Array, "n ..."]) -> Float[Array, "..."]:
    """The sum over the first axis of the product, term by term: compilers are slow at the sum of one large array."""
    shape = jnp.broadcast_shapes(left.shape[1:], right.shape[1:])
    return lax.scan(lambda total, term: (total + term[0] * term[1], None), jnp.zeros(shape), (left, right))[0]


def _rotate(T: Float[Array, "p p runs"], h: Float[Array, "p runs"], outside: Float[Array, " runs"]):
    r"""Rotate the vector :math:`(h, \chi)` onto one axis, from its end on: T stays triangular, plus one dense column.

    With :math:`\sigma_j^2 = \chi^2 + \sum_{i\ge j} h_i^2` and :math:`w_j = \sum_{i\ge j} T_i h_i` over columns, column j
    becomes :math:`(\sigma_{j+1} T_j - h_j w_{j+1}/\sigma_{j+1})/\sigma_j`, and the dense column is :math:`w_0/\sigma_0`.

    Returns the columns, :math:`w_0 = Th`, the row sums of T squared, and :math:`\sigma_0^2`.
    """

    def column(carry, row):
        w, squares, rest = carry
        T_j, h_j = row
        more = rest + h_j * h_j
        product = more * rest
        scale = jnp.where(product > 0, lax.rsqrt(jnp.where(product > 0, product, 1.0)), 0.0)
        turned = jnp.where(more > 0, T_j * (rest * scale) - w * (h_j * scale), T_j)
        return (w + T_j * h_j, squares + T_j * T_j, more), turned

    zero = jnp.zeros_like(h)
    (Th, squares, rest), turned = lax.scan(column, (zero, zero, outside), (T, h), reverse=True)
    return turned, Th, squares, rest


def _append(T: Float[Array, "p p runs"], v: Float[Array, "p runs"]) -> Float[Array, "p p runs"]:
    """The triangular factor of [T, v], by one rotation a column: its Gram matrix is T T^T + v v^T."""

    def column(v, row):
        j, T_j = row
        head, tail = T_j[j], v[j]
        length = jnp.sqrt(head * head + tail * tail)
        inverse = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1.0), 0.0)
        cosine, sine = jnp.where(length > 0, head * inverse, 1.0), tail * inverse
        return cosine * v - sine * T_j, cosine * T_j + sine * v

    return lax.scan(column, v, (jnp.arange(T.shape[0]), T))[1]
