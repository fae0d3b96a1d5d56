"""The real algorithm, with its weights in R^d."""

from __future__ import annotations

from functools import singledispatch
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sgdlimits.errors import BadInput, check_dimension
from sgdlimits.level.base import Level
from sgdlimits.level.process import Marching, Moment, Process
from sgdlimits.problem.base import Problem
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.random import MOST_NORMALS, Purpose, Stream
from sgdlimits.statistics.frame import frame_of
from sgdlimits.statistics.overlaps import Overlaps


class SGD(Level):
    """One-pass SGD on the weights themselves, in dimension `d`: the ground truth of the other levels.

    Batch are isotropic, so the axes are chosen with the fixed directions along the first k of them. Given statistics are
    embedded as weights that have them.

    Parameters
    ----------
    d : dimension

    See Also
    --------
    sgdlimits.Chain : the same law of the statistics, at a cost without d
    """

    name: ClassVar[str] = "sgd"
    d: int = eqx.field(static=True, converter=check_dimension)

    def bind(self, problem, start, first):
        """Few enough runs that one step's inputs stay near a core, and memory stays bounded."""
        most = int(min(4096, max(1, 2**17 // (self.d * problem.samples_per_step))))
        return Weighing(self, problem, most, self.d, sgd_process(problem, self.d))


class Weighing(Marching):
    """Every run costs its share: batches are not filled up."""

    flat: ClassVar[int] = 1


@singledispatch
def sgd_process(problem: Problem, d: int) -> Process:
    """SGD on the weights of a problem; register one for a new kind of problem."""
    raise BadInput(f"SGD is not written for {type(problem).__name__}. Use Chain(d), or register one with sgd_process.")


class Weights(eqx.Module):
    """The second layer and the first, runs first."""

    a: Float[Array, "runs p"]
    W: Float[Array, "runs p d"]


class Batch(NamedTuple):
    """One step's b inputs x, label noise and classes."""

    x: Float[Array, "b runs d"]
    z: Float[Array, "b runs"]
    c: Int[Array, "b runs"]


class WeightProcess(Process):
    """SGD on the weights of a projection problem."""

    runs_axis: ClassVar[int] = 0
    problem: ProjectionProblem
    frame: Float[Array, "k k"]
    d: int = eqx.field(static=True)
    block: int = eqx.field(static=True)

    def __init__(self, problem: ProjectionProblem, d: int) -> None:
        self.problem, self.frame = problem, problem.frame
        self.d = check_dimension(d, problem.target.teachers)
        if d >= MOST_NORMALS:
            raise BadInput(f"SGD goes up to d = {MOST_NORMALS - 1}; got {d}. Use Chain(d), which has the same law.")
        self.block = max(1, min(16, 1024 // (d * problem.algorithm.batch)))

    def start(self, stats: Overlaps) -> Weights:
        p, k = stats.M.shape[1:]
        room = min(p, self.d - k)
        at = frame_of(stats, self.frame, room)
        W = jnp.zeros((stats.M.shape[0], p, self.d)).at[:, :, :k].set(jnp.moveaxis(at.m, -1, 0))
        W = W.at[:, :, k : k + room].set(jnp.transpose(at.T, (2, 1, 0))[:, :, :room])
        return Weights(jnp.moveaxis(at.a, -1, 0), W)

    def draw(self, stream: Stream) -> Batch:
        data, k, b = self.problem.data, self.problem.target.teachers, self.problem.algorithm.batch
        normal = stream.each(b).normal_rows(Purpose.INPUT, self.d + 1).reshape(stream.steps, b, -1, self.d + 1)
        c = self.problem.data.draw_class(stream, b)
        x = data.sigma * normal[..., :-1]
        if not data.centred:
            x = x.at[..., :k].add(jnp.moveaxis(data.centre(self.frame, c), 0, -1))
        return Batch(x, normal[..., -1], c)

    def step(self, state: Weights, inputs: Batch, now: Moment) -> Weights:
        problem, x = self.problem.at(now.t), inputs.x
        sgd = problem.algorithm
        fields = jnp.einsum("rpd,brd->pbr", state.W, x)
        fixed = jnp.einsum("ks,brs->kbr", self.frame, x[:, :, : self.frame.shape[0]])
        a = jnp.broadcast_to(state.a.T[:, None], fields.shape)
        G, second = problem.model.gradient(fields, fixed, a, inputs.z, inputs.c)
        change = jnp.einsum("pbr,brd->rpd", (sgd.lr_sample / self.d) * G, x)
        W = (1 - sgd.lr * sgd.ridge / self.d) * state.W - change
        if sgd.sphere:
            W = W / jnp.sqrt(jnp.einsum("rpd,rpd->rp", W, W))[:, :, None]
        if sgd.lr_second is None:
            return Weights(state.a, W)
        return Weights(state.a - (sgd.lr_second / self.d) * (second.mean(1).T + sgd.ridge * state.a), W)

    def statistics(self, state: Weights) -> Overlaps:
        M = jnp.einsum("rps,ks->rpk", state.W[:, :, : self.frame.shape[0]], self.frame)
        return Overlaps(state.a, M, jnp.einsum("rpd,rqd->rpq", state.W, state.W))

    def risk(self, state: Weights) -> Float[Array, " runs"]:
        return self.problem.over_runs(self.problem.risk, self.statistics(state))


@sgd_process.register
def _(problem: ProjectionProblem, d: int) -> WeightProcess:
    return WeightProcess(problem, d)
