r"""The exact chain of the summary statistics at finite dimension.

Given the statistics, one step of SGD in R^d needs of the input x only its coordinates in the span of the fixed and the trained
directions, which are Gaussian, and the norm of the rest, which is a chi-square number: the statistics are a Markov chain, and
a step costs the same at d = 10^3 and d = 10^9.
"""

from __future__ import annotations

from functools import singledispatch
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from sgdlimits.errors import BadInput
from sgdlimits.level.base import check_dimension
from sgdlimits.level.process import Process, SteppingLevel
from sgdlimits.problem.base import Problem
from sgdlimits.problem.frame import Frame, Loading, frame_of, overlaps_of
from sgdlimits.problem.overlaps import Overlaps, runs_first
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.random import Purpose, Stream


class Chain(SteppingLevel):
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

    def process(self, problem):
        return chain_process(problem, self.d)

    def batch(self, problem):
        """On a processor few enough runs that the states stay in a core's cache; on an accelerator enough to fill it."""
        most, numbers = (8192, 2**16) if jax.default_backend() == "cpu" else (2**20, 2**24)
        return int(min(most, max(64, numbers / problem.size)))


@singledispatch
def chain_process(problem: Problem, d: int) -> Process:
    """The exact chain of a problem; register one for a new kind of problem."""
    raise BadInput(f"no exact chain is known for {type(problem).__name__}. Use ODE(), or register one with chain_process.")


class Sample(NamedTuple):
    """One step's input as the chain sees it: coordinates in the frame, norm of the rest squared, label noise, class."""

    inside: Float[Array, "k runs"]
    along: Float[Array, "p runs"]
    outside: Float[Array, " runs"]
    z: Float[Array, " runs"]
    c: Int[Array, " runs"]


class FrameChain(Process):
    r"""The chain of a projection problem, on coordinates (see `sgdlimits.problem.frame`).

    An input has coordinates g along the fixed directions, h along those that T uses, and a rest of squared length
    :math:`\chi^2`. With :math:`u_j \leftarrow \kappa u_j + c_j x`, :math:`c = -(\text{lr}/d) G`,

    .. math:: m \leftarrow \kappa m + c g^\top, \qquad
              TT^\top \leftarrow (\kappa T + ch^\top)(\kappa T + ch^\top)^\top + \chi^2 cc^\top .

    The new T is the triangular factor of :math:`[\kappa T + ch^\top, \chi c]`, in two sweeps over its columns, without forming
    Q: rotating :math:`(h, \chi)` onto one axis keeps T triangular and leaves one vector to add, which `_append` rotates in.
    """

    problem: ProjectionProblem
    frame: Float[Array, "k k"]
    d: Float[Array, ""]
    free: Float[Array, " p"] | None
    block: int = eqx.field(static=True)

    def __init__(self, problem: ProjectionProblem, d: int) -> None:
        p, k = problem.network.width, problem.target.teachers
        room = check_dimension(d, k) - k
        self.problem, self.frame, self.d = problem, problem.frame, jnp.asarray(d, float)
        self.free = None if room >= p else (jnp.arange(p) < room).astype(float)
        self.block = max(1, min(64, 256 // (p + k + 2), d // 16))

    @property
    def room(self) -> int:
        """How many directions lie outside the span of the fixed ones, or p where that is fewer."""
        p = self.problem.network.width
        return p if self.free is None else int(self.free.sum())

    def start(self, stats: Overlaps) -> Frame:
        return frame_of(stats, self.frame, self.room)

    def draw(self, stream: Stream) -> Sample:
        problem = self.problem
        p, k, sigma = problem.network.width, problem.target.teachers, problem.data.sigma
        normal = stream.normal(Purpose.STEP, p + k + 1)
        dof = jnp.maximum(self.d - k - p, 0.0)[None]
        outside = stream.chi_square(Purpose.CHI, dof)[:, 0]
        along = normal[:, k : k + p] if self.free is None else normal[:, k : k + p] * self.free[:, None]
        c = draw_class(problem, stream)
        centre = jnp.moveaxis(problem.data.centre(self.frame, c), 0, 1)
        return Sample(centre + sigma * normal[:, :k], sigma * along, sigma**2 * outside, normal[:, -1], c)

    def step(self, state: Frame, x: Sample, size: Float[Array, ""]) -> Frame:
        sgd = self.problem.algorithm
        keep = 1 - sgd.lr * sgd.ridge / self.d
        T, Th, TT, rest = _rotate(state.T, x.along, x.outside)
        fields = (state.m * x.inside[None]).sum(1) + Th
        G, second = self.problem.gradient(fields, self._fixed(x), state.a, x.z, x.c)
        c = -(sgd.lr / self.d) * G
        length = jnp.sqrt(rest)
        inverse = jnp.where(rest > 0, 1 / jnp.where(rest > 0, length, 1.0), 0.0)
        m = keep * state.m + c[:, None] * x.inside[None]
        T = _append(keep * T, keep * Th * inverse + c * length)
        if sgd.sphere:
            norm = (state.m**2).sum(1) + TT
            change = (keep**2 * norm - 1) + c * (2 * keep * fields + c * ((x.inside**2).sum(0) + rest))
            root = jnp.sqrt(1 + change)
            shrink = -change / (root * (1 + root))
            m, T = m + m * shrink[:, None], T + T * shrink[None]
        if sgd.lr_second is None:
            return Frame(state.a, m, T)
        return Frame(state.a - (sgd.lr_second / self.d) * (second + sgd.ridge * state.a), m, T)

    def statistics(self, state: Frame) -> Overlaps:
        return runs_first(overlaps_of(state, self.frame))

    def risk(self, state: Frame) -> Float[Array, " runs"]:
        k, p = self.problem.target.teachers, self.problem.network.width
        fixed = jnp.concatenate([self.frame, jnp.zeros((k, p))], axis=1)

        def one(run: Frame):
            return self.problem.rule.risk(self.problem, run.a, Loading(jnp.concatenate([run.m, run.T.T], axis=1), fixed))

        return self.problem.over_runs(one, runs_first(state))

    def _fixed(self, x: Sample) -> Float[Array, "k runs"]:
        return (self.frame[:, :, None] * x.inside[None]).sum(1)


@chain_process.register
def _(problem: ProjectionProblem, d: int) -> FrameChain:
    return FrameChain(problem, d)


def draw_class(problem: ProjectionProblem, stream: Stream) -> Int[Array, "steps runs"]:
    """The class of each step's input."""
    weights = problem.data.weights
    if weights.size == 1:
        return jnp.zeros((stream.steps, stream.runs.size), jnp.int32)
    u = stream.uniform(Purpose.CLASS, 1)[:, 0]
    return (u[..., None] > jnp.cumsum(weights)[:-1]).sum(-1, dtype=jnp.int32)


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
        turned = T_j * (rest * scale) - w * (h_j * scale)
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
        cosine, sine = head * inverse, tail * inverse
        return cosine * v - sine * T_j, cosine * T_j + sine * v

    return lax.scan(column, v, (jnp.arange(T.shape[0]), T))[1]
