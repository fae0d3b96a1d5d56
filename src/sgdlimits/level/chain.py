r"""The exact chain of the summary statistics at finite dimension.

Given the statistics, one step of SGD in R^d needs of the input x only its coordinates in the span of the fixed and the trained
directions, which are Gaussian, and the norm of the rest, which is a chi-square number: the statistics are a Markov chain, and
a step costs the same at d = 10^3 and d = 10^9. The rests of a batch of inputs have a Wishart Gram matrix.
"""

from __future__ import annotations

from functools import singledispatch
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from sgdlimits.algorithm.base import combined, is_lower, moves
from sgdlimits.algorithm.limit import Drawn, view
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput, check_dimension
from sgdlimits.expectation.support import Support
from sgdlimits.kernel.base import Moment
from sgdlimits.kernel.choose import gpu_present
from sgdlimits.kernel.groups import platform
from sgdlimits.kernel.random import Purpose, Stream
from sgdlimits.level.base import Level
from sgdlimits.level.march import Marching
from sgdlimits.level.process import Process, drawn_by_step
from sgdlimits.part import has_schedules
from sgdlimits.problem.base import Problem
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.statistics.frame import Frame, Loading, frame_of, overlaps_of
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, rows_of, updated
from sgdlimits.statistics.trees import number_array, runs_first

ROUNDING = 2.0**-46
"""A pivot of the triangular factor is zero below this share of its row, some 64 units of rounding.

Velocities that begin at zero are parallel after one sample. What is then left of a row is rounding, and along it would lie an
axis of the path that each kernel rounds, and so chooses, otherwise. The Gram matrix changes by no more than by rounding.
"""


@checked
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
    joins: ClassVar[bool] = True
    d: int = eqx.field(static=True)

    def bind(self, problem, start, first):
        """On a processor few enough runs that the states stay in a core's cache; on an accelerator enough to fill it."""
        limit, numbers = (8192, 2**18) if platform() == "cpu" and not gpu_present() else (2**20, 2**24)
        most = int(min(limit, max(64, numbers / (problem.numerics.size * problem.numerics.samples_per_step))))
        return Marching(self, problem, most, self.d, chain_process(problem, self.d))


@singledispatch
def chain_process(problem: Problem, d: int) -> Process:
    """The exact chain of a problem; register one for a new kind of problem."""
    raise BadInput(f"no exact chain is known for {type(problem).__name__}. Use ODE(), or register one with chain_process.")


class Samples(NamedTuple):
    """One step's b inputs as the chain sees them: coordinates in the frame, rests, label noise, classes.

    Of the rests r combinations matter: all b where the algorithm asks for products of inputs or has noise, otherwise min(b, n),
    with n directions that move. `outside` is the diagonal, squared, of the triangular factor of their Gram matrix, and `below`
    what is below the diagonal, row by row (Bartlett). An algorithm's own noise is further inputs after the samples.
    """

    inside: Float[Array, "k b runs"]
    along: Float[Array, "n b runs"]
    outside: Float[Array, "r runs"]
    below: Float[Array, "n runs"]
    z: Float[Array, "b runs"]
    c: Int[Array, "b runs"]


class FrameChain(Process):
    r"""The chain of a projection problem, on coordinates (see `sgdlimits.statistics.frame`).

    The b inputs of a step have coordinates g (k-by-b) along the fixed directions, h (n-by-b) along those that T uses, and rests
    outside. An algorithm turns all directions W into AW + CX (see `sgdlimits.algorithm.weights`), hence

    .. math:: m \leftarrow Am + Cg^\top, \qquad
              TT^\top \leftarrow (AT + Ch^\top)(AT + Ch^\top)^\top + CWC^\top ,

    where W is the Gram matrix of the rests, a Wishart matrix. The new T is the triangular factor of
    :math:`[AT + Ch^\top, K]`, :math:`KK^\top = CWC^\top`, without forming Q: by rotations for one input where A is lower
    triangular, by Gram-Schmidt otherwise.
    """

    problem: ProjectionProblem
    frame: Float[Array, "k k"]
    d: Float[Array, ""]
    free: Float[Array, " n"] | None
    block: int = eqx.field(static=True)

    def __init__(self, problem: ProjectionProblem, d: int) -> None:
        k, n = problem.target.teachers, problem.network.width * len(problem.algorithm.names)
        room = check_dimension(d, k) - k
        self.problem, self.frame, self.d = problem, problem.frame, number_array(d)
        self.free = None if room >= n else number_array(np.arange(n) < room)
        self.block = max(1, min(64, 256 // (self._inputs * (n + k + 2))))

    @property
    def numbers(self):
        return self._inputs * (self._directions + self.frame.shape[0] + 2) * self.block

    @property
    def small(self):
        return self.problem.network.width <= 2

    @property
    def patience(self):
        """A sixteenth of a unit of t."""
        return self.d / (16 * self.problem.algorithm.batch)

    @property
    def _directions(self) -> int:
        return self.problem.network.width * len(self.problem.algorithm.names)

    @property
    def _inputs(self) -> int:
        return self.problem.algorithm.inputs(self.problem.network.width)

    @property
    def room(self) -> int:
        """How many directions lie outside the span of the fixed ones, or n where that is fewer."""
        return self._directions if self.free is None else int(self.free.sum())

    def start(self, stats: Overlaps) -> Frame:
        return frame_of(stats.arranged(self.problem.algorithm.order), self.frame, self.room)

    def draw(self, stream: Stream) -> Samples:
        if has_schedules(self.problem.data):
            return drawn_by_step(self, stream)
        problem, algorithm = self.problem, self.problem.algorithm
        n, k, b, L = self._directions, problem.target.teachers, algorithm.batch, self._inputs
        r = L if algorithm.uses_gram or algorithm.uses_noise else min(L, n)
        column = np.tril_indices(r, -1)[1]
        normal = stream.normal(Purpose.STEP, (k + n) * L + b + column.size)
        inside, along, z, below = jnp.split(normal, np.cumsum([k * L, n * L, b]), axis=1)
        inside, along = (part.reshape(stream.steps, -1, L, stream.runs.size) for part in (inside, along))
        dof = jnp.maximum(self.d - k - n - np.arange(r), 0.0)
        outside = stream.chi_square(Purpose.CHI, dof)
        below = below * (dof[column] > 0)[:, None]
        along = along if self.free is None else along * self.free[:, None, None]
        c = problem.data.draw_class(stream, b)
        centre = jnp.moveaxis(problem.data.centre(self.frame, c), 0, 1)
        sigma = problem.data.sigma
        if b == L:
            return Samples(centre + sigma * inside, sigma * along, sigma**2 * outside, sigma * below, z, c)
        scale = jnp.concatenate([jnp.full(b, sigma), jnp.ones(L - b)])
        centre = jnp.pad(centre, ((0, 0), (0, 0), (0, L - b), (0, 0)))
        by = scale[:, None]
        row = np.tril_indices(r, -1)[0]
        return Samples(centre + by * inside, by * along, by**2 * outside, scale[row][:, None] * below, z, c)

    def step(self, state: Frame, x: Samples, now: Moment) -> Frame:
        problem = self.problem.at(now.t)
        rule, names, per = problem.algorithm, state.names, 1 / self.d
        rounding = ROUNDING if len(names) > 1 and problem.network.width > 1 else 0.0
        turned = _rotate(state.T, x.along[:, 0], x.outside[0]) if self._inputs == 1 < self._directions else None
        along = _contract(state.T[:, :, None], x.along[:, None]) if turned is None else turned.Th[:, None]
        fields = (state.m[:, :, None] * x.inside[None]).sum(1) + along
        fixed = (self.frame[:, :, None, None] * x.inside[None]).sum(1)

        def one(x: Samples, fields, fixed, at: Frame):
            rows = {name: rows_of(names, name, problem.network.width) for name in names}
            products = lambda i, j: at.m[rows[i]] @ at.m[rows[j]].T + at.T[:, rows[i]].T @ at.T[:, rows[j]]
            rests = lambda: _bartlett(x) @ _bartlett(x).T
            inputs = lambda: per * (x.inside.T @ x.inside + x.along.T @ x.along + rests())
            return moves(rule, view(rule, problem.model, per, now.t, Drawn(fields, fixed, x.z, x.c), at, products, inputs))

        found, numbers = jax.vmap(one, -1, -1)(x, fields, fixed, state)
        C = per * jnp.concatenate([move.inputs for move in found])
        m = combined(found, state.m) + (C[:, None] * x.inside[None]).sum(2)
        if self.free is not None:  # T has the coordinates in all of the room, and nothing is outside
            T = combined(found, state.T, axis=1) + _added(x, C)[0]
        elif self._inputs == self._directions == 1:  # T is a length
            T = jnp.sqrt((combined(found, state.T, axis=1) + C * x.along) ** 2 + C**2 * x.outside)
        elif turned is not None and is_lower(found):
            length, some = jnp.sqrt(turned.rest), turned.rest > 0
            inverse = jnp.where(some, 1 / jnp.where(some, length, 1.0), 0.0)
            T = _append(combined(found, turned.T, axis=1), combined(found, turned.Th) * inverse + C[:, 0] * length, rounding)
        else:
            along, outside = _added(x, C)
            T = _triangular(jnp.concatenate([combined(found, state.T, axis=1) + along, outside]), rounding)
        if any(move.unit for move in found):
            held = np.repeat([move.unit for move in found], problem.network.width)[:, None]
            inverse = lax.rsqrt(jnp.where(held, (m**2).sum(1) + _contract(T, T), 1.0))
            m, T = m * inverse[:, None], T * inverse[None]
        scalars = {**{move.name: move.scalars for move in found}, **numbers}
        return Frame(updated(state.a, scalars[STUDENT]), m, T, {name: scalars[name] for name in state.kept}, names)

    def statistics(self, state: Frame) -> Overlaps:
        return runs_first(overlaps_of(state, self.frame)).arranged(self.problem.algorithm.names)

    @property
    def plain(self) -> bool:
        return not self.problem.rule.factored

    def risk(self, state: Frame, stats: Overlaps, t: Float[Array, " runs"]) -> Float[Array, " runs"]:
        if self.plain:
            return super().risk(state, stats, t)
        model, rows = self.problem.model, rows_of(state.names, STUDENT, self.problem.network.width)
        fixed = jnp.concatenate([self.frame, jnp.zeros((model.teachers, model.width))], axis=1)
        T = state.T if len(state.names) == 1 else _triangular(state.T[:, rows])

        def one(run):
            (a, m, T), t = run
            now = self.problem.at(t)
            return now.rule.risk_of_factor(now.model, a, Loading(jnp.concatenate([m, T.T], axis=1), fixed))

        return self.problem.numerics.over_runs(one, (runs_first((state.a, state.m[rows], T)), t))

    def support(self, state: Frame, closed: bool = False) -> Support | None:
        k, rows = self.frame.shape[0], rows_of(state.names, STUDENT, self.problem.network.width)
        S = jnp.concatenate([state.m[rows], state.T[:, rows].T], axis=1)
        found = self.problem.rule.support(self.problem.model, state.a, S, closed)
        if found is None:
            return None

        def in_frame(a, S) -> Frame:
            m, T = jnp.zeros_like(state.m).at[rows].set(S[:, :k]), jnp.zeros_like(state.T).at[:, rows].set(S[:, k:].T)
            return Frame(a, m, T, jax.tree.map(jnp.zeros_like, state.kept), state.names)

        return Support(found.value, in_frame(*found.slope), in_frame(*found.bend))


chain_process.register(ProjectionProblem, FrameChain)


def _added(x: Samples, C: Float[Array, "n b runs"]) -> tuple[Float[Array, "n n runs"], Float[Array, "r n runs"]]:
    r"""The columns of :math:`Ch^\top` and K: what a step adds to the directions, along those of T and outside.

    Given C, what the rests add are n Gaussian vectors with covariance :math:`CC^\top`. Where C does not depend on the rests and
    :math:`CC^\top = RR^\top` for an R of r < b columns, their Gram matrix is :math:`KK^\top`, K = RA, with Bartlett's
    triangular factor A of r vectors.
    """
    each, r = jnp.swapaxes(C, 0, 1), x.outside.shape[0]
    R = each if r == each.shape[0] else _triangular(each)
    along = _contract(jnp.swapaxes(x.along, 0, 1)[:, :, None], each[:, None])
    return along, _contract(_bartlett(x)[:, :, None], R[:, None])


def _bartlett(x: Samples) -> Float[Array, "r r *runs"]:
    """The triangular factor A of the rests, row by row."""
    r = x.outside.shape[0]
    A = jnp.zeros((r, *x.outside.shape)).at[np.diag_indices(r)].set(jnp.sqrt(x.outside))
    return A.at[np.tril_indices(r, -1)].set(x.below)


def _triangular(X: Float[Array, "n p runs"], rounding: float = 0.0) -> Float[Array, "p p runs"]:
    """The columns of the triangular factor of a matrix with p rows and columns X, by Gram-Schmidt on the rows.

    Each row is as exact as its own length allows, however long the others are. What is left of a row, if it is shorter than
    `rounding` times the row, is taken as zero.
    """
    rows, least = jnp.arange(X.shape[1]), rounding**2 * _contract(X, X) if rounding else None

    def column(X, step):
        j, least = step
        row = X[:, j, None]
        products = _contract(X, row)
        square = products[j]
        some = square > (0 if least is None else least)
        inverse = jnp.where(some, lax.rsqrt(jnp.where(some, square, 1.0)), 0.0)
        T_j = jnp.where(rows[:, None] >= j, products * inverse, 0.0)
        return X - row * inverse * T_j, T_j

    return lax.scan(column, X, (rows, least))[1]


def _contract(left: Float[Array, "n ..."], right: Float[Array, "n ..."]) -> Float[Array, "..."]:
    """The sum over the first axis of the product, term by term: compilers are slow at the sum of one large array."""
    shape = jnp.broadcast_shapes(left.shape[1:], right.shape[1:])
    return lax.scan(lambda total, term: (total + term[0] * term[1], None), jnp.zeros(shape), (left, right))[0]


class Turned(NamedTuple):
    """T with one input's coordinates turned onto one axis, what T is along it, and the squared length of the input."""

    T: Float[Array, "n n runs"]
    Th: Float[Array, "n runs"]
    rest: Float[Array, " runs"]


def _rotate(T: Float[Array, "p p runs"], h: Float[Array, "p runs"], outside: Float[Array, " runs"]) -> Turned:
    r"""Rotate the vector :math:`(h, \chi)` onto one axis, from its end on: T stays triangular, plus one dense column.

    With :math:`\sigma_j^2 = \chi^2 + \sum_{i\ge j} h_i^2` and :math:`w_j = \sum_{i\ge j} T_i h_i` over columns, column j
    becomes :math:`(\sigma_{j+1} T_j - h_j w_{j+1}/\sigma_{j+1})/\sigma_j`, and the dense column is :math:`w_0/\sigma_0`.
    """

    def column(carry, row):
        w, rest = carry
        T_j, h_j = row
        more = rest + h_j * h_j
        product = more * rest
        scale = jnp.where(product > 0, lax.rsqrt(jnp.where(product > 0, product, 1.0)), 0.0)
        cosine = jnp.where(more > 0, rest * scale, 1.0)
        return (w + T_j * h_j, more), T_j * cosine - w * (h_j * scale)

    (Th, rest), turned = lax.scan(column, (jnp.zeros_like(h), outside), (T, h), reverse=True)
    return Turned(turned, Th, rest)


def _append(T: Float[Array, "p p runs"], v: Float[Array, "p runs"], rounding: float = 0.0) -> Float[Array, "p p runs"]:
    """The triangular factor of [T, v], by one rotation a column: its Gram matrix is T T^T + v v^T. Zeros stay exact.

    A pivot that is smaller than `rounding` times its row is zero.
    """
    rows = jnp.arange(T.shape[0])[:, None]
    least = rounding * jnp.sqrt(_contract(T, T) + v * v) if rounding else None

    def column(v, row):
        j, T_j, least = row
        head, tail = T_j[j], v[j]
        if least is not None:
            none = head * head + tail * tail <= least * least
            head, tail = jnp.where(none, 0.0, head), jnp.where(none, 0.0, tail)
            T_j, v = (jnp.where((rows == j) & none, 0.0, part) for part in (T_j, v))
        length = jnp.sqrt(head * head + tail * tail)
        inverse = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1.0), 0.0)
        cosine, sine = jnp.where(length > 0, head * inverse, 1.0), tail * inverse
        return jnp.where(rows > j, cosine * v - sine * T_j, 0.0), cosine * T_j + sine * v

    return lax.scan(column, v, (jnp.arange(T.shape[0]), T, least))[1]
