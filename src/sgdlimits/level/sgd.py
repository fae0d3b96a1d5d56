"""The real algorithm, with its weights in R^d."""

from __future__ import annotations

from functools import singledispatch
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sgdlimits.algorithm.base import combined, moves
from sgdlimits.algorithm.coordinates import Coordinatewise
from sgdlimits.algorithm.limit import Drawn, view
from sgdlimits.domain import Count, checked
from sgdlimits.errors import BadInput, check_count, check_dimension
from sgdlimits.inputs.base import Sizes
from sgdlimits.jaxtools import platform
from sgdlimits.kernel.base import StepTime
from sgdlimits.kernel.random import MAX_NORMALS, Stream
from sgdlimits.level.base import Level
from sgdlimits.level.process import Process, draw_by_step
from sgdlimits.level.stepper import ProcessEngine
from sgdlimits.part import has_schedules
from sgdlimits.problem.base import Problem
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.statistics.frame import frame_of
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, Scalars, rows_of, replace_scalars
from sgdlimits.statistics.rows import products, row_products
from sgdlimits.statistics.trees import runs_first, runs_last

GROUPS = {4096: 1, 512: 4, 128: 8}
"""From each of these dimensions on, how many runs are computed together: the fewest that cost hardly more than many do."""


@checked
class SGD(Level):
    """One-pass SGD on the weights themselves, in dimension `d`: the ground truth of the other levels.

    Inputs are isotropic, so the axes are chosen with the fixed directions along the first k of them. Given statistics are
    embedded as weights that have them.

    Parameters
    ----------
    d : dimension
    reuse : how many samples there are, which SGD then takes in turn, again and again: no longer one-pass. With batches of as
        many it is gradient descent on the empirical risk. None for new ones at each step

    See Also
    --------
    sgdlimits.Chain : the same law of the statistics, at a cost without d
    """

    name: ClassVar[str] = "sgd"
    d: Count = eqx.field(static=True)
    reuse: Count | None = eqx.field(static=True, default=None)

    def bind(self, problem, start, first):
        """Few enough runs that memory stays bounded."""
        most = int(min(4096, max(1, 2**17 // (self.d * problem.numerics.samples_per_step))))
        process = sgd_process(problem, self.d)
        if self.reuse is not None:
            if not isinstance(process, WeightProcess):
                raise BadInput(f"reuse is not written for {type(problem).__name__}. Leave it out.")
            process = type(process)(process.problem, self.d, check_count("reuse", self.reuse))
        return ProcessEngine(self, problem, most, self.d, process)


def group_of(d: int) -> int | None:
    """How many runs of SGD in R^d are computed together, where these are not all. A GPU takes all."""
    return next((size for least, size in GROUPS.items() if d >= least), None) if platform() == "cpu" else None


def block_of(d: int, inputs: int, rows: int) -> int:
    """How many steps of so many inputs are drawn before they are made, and so many rows of weights looked at for divergence.

    Their numbers should stay near a core. In groups they are at least two, lest they be drawn again wherever they are used.
    """
    runs = group_of(d)
    return max(1, min(16, 1024 // (d * inputs))) if runs is None else max(2, min(8, 2 * rows, 2**16 // (runs * d * inputs)))


def drawable(d: int) -> int:
    """d, or `BadInput` where a step's random numbers do not reach for an input."""
    if d >= MAX_NORMALS:
        raise BadInput(f"SGD goes up to d = {MAX_NORMALS - 1}; got {d}. Use Chain(d), which has the same law.")
    return d


@singledispatch
def sgd_process(problem: Problem, d: int) -> Process:
    """SGD on the weights of a problem; register one for a new kind of problem."""
    raise BadInput(f"SGD is not written for {type(problem).__name__}. Use Chain(d), or register one with sgd_process.")


class Weights(eqx.Module):
    """Scalars and all directions, in the order of the algorithm, runs first; and what it keeps."""

    a: Scalars
    W: Float[Array, "runs n d"]
    kept: dict[str, Any]
    names: tuple[str, ...] = eqx.field(static=True)


class Batch(NamedTuple):
    """One step's inputs x, label noise and classes of its samples; an algorithm's own noise is further inputs."""

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
    reuse: int | None = eqx.field(static=True)

    def __init__(self, problem: ProjectionProblem, d: int, reuse: int | None = None) -> None:
        self.problem, self.frame, self.reuse = problem, problem.frame, reuse
        algorithm = problem.algorithm
        if reuse is not None and algorithm.inputs(problem.network.width) != algorithm.batch:
            raise BadInput(f"{type(algorithm).__name__} adds noise of its own, which cannot be reused. Leave reuse out.")
        self.d = drawable(check_dimension(d, problem.target.teachers))
        width = problem.network.width
        self.block = block_of(d, algorithm.inputs(width), width * len(algorithm.names))

    @property
    def group_size(self):
        return group_of(self.d)

    @property
    def floats_per_run(self):
        width, algorithm = self.problem.network.width, self.problem.algorithm
        return self.d * (width * len(algorithm.names) + algorithm.inputs(width) * self.block)

    def _along(self, rows: Float[Array, "... d"]) -> Float[Array, "... k"]:
        """The coordinates of rows in the frame of the fixed directions, which are along the first axes."""
        return rows[..., : self.frame.shape[0]]

    def _shifted(self, x: Float[Array, "... d"], centre: Float[Array, "... k"]) -> Float[Array, "... d"]:
        """Inputs moved by coordinates in that frame."""
        return x.at[..., : self.frame.shape[0]].add(centre)

    def start(self, stats: Overlaps) -> Weights:
        n, k = stats.M.shape[1:]
        room = min(n, self.d - k)
        at = runs_first(frame_of(stats, self.frame, room))
        W: Any = np.zeros((len(at.m), n, self.d))
        W[:, :, :k], W[:, :, k : k + room] = at.m, at.T.swapaxes(1, 2)[:, :, :room]
        return Weights(at.a, W, at.kept, stats.names)

    def draw(self, stream: Stream) -> Batch:
        if has_schedules(self.problem.model.inputs):
            return draw_by_step(self, stream)
        stream = stream.repeated_after(self.reuse)
        algorithm, n = self.problem.algorithm, self.problem.network.width
        sizes = Sizes(algorithm.batch, algorithm.inputs(n), self.problem.target.teachers, n * len(algorithm.names), 0)
        return Batch(*self.problem.model.inputs.vectors(stream, sizes, self.d, self.frame, self._shifted))

    def step(self, state: Weights, inputs: Batch, now: StepTime) -> Weights:
        problem, x, per = self.problem.at(now.t), inputs.x, 1 / self.d
        algorithm, names = problem.algorithm, state.names
        X = jnp.swapaxes(x, 0, 1)
        fields = runs_last(products(state.W, X))
        fixed = jnp.einsum("ks,brs->kbr", self.frame, self._along(x))
        rows = {name: rows_of(names, name, problem.network.width) for name in names}

        def one(drawn: Drawn, at: Weights, Q, K):
            among = lambda i, j: Q[rows[i], rows[j]]
            return moves(algorithm, view(algorithm, problem.model, per, now.t, drawn, at, among, lambda: K))

        gram = products(state.W, state.W), per * products(X, X)  # computed for rules that ask for them
        drawn = Drawn(fields, fixed, inputs.z, inputs.c)
        found, numbers = jax.vmap(one, (-1, 0, 0, 0), -1)(drawn, state, *gram)
        C = per * jnp.concatenate([move.inputs for move in found])
        W = jnp.moveaxis(combined(found, jnp.moveaxis(state.W, 0, -1)), -1, 0) + jnp.einsum("nbr,brd->rnd", C, x)
        if any(move.unit for move in found):
            held = np.repeat([move.unit for move in found], problem.network.width)
            W = W / jnp.where(held, jnp.sqrt(row_products(W, W)), 1.0)[:, :, None]
        scalars = {**runs_first({move.name: move.scalars for move in found}), **numbers}
        return Weights(replace_scalars(state.a, scalars[STUDENT]), W, {name: scalars[name] for name in state.kept}, names)

    def statistics(self, state: Weights) -> Overlaps:
        M = jnp.einsum("rps,ks->rpk", self._along(state.W), self.frame)
        algorithm = self.problem.algorithm
        kept = {name: state.kept[name] for name in (*algorithm.memory, *algorithm.numbers)}
        return Overlaps(state.a, M, products(state.W, state.W), kept, state.names)


class CoordinateProcess(WeightProcess):
    """An algorithm on coordinates, of which it may remember more than directions: that is kept, and not shown.

    Fixed directions and starts are spread over all axes, along a cosine basis.
    """

    def _basis(self, rows: int) -> Float[np.ndarray, "rows d"]:
        """Orthonormal vectors whose coordinates are all of order one over the root of d."""
        angles = np.pi * np.outer(np.arange(1, rows + 1), np.arange(self.d) + 0.5) / self.d
        return np.sqrt(2 / self.d) * np.cos(angles)

    def _along(self, rows):
        basis = self._basis(self.frame.shape[0])
        return products(rows, jnp.broadcast_to(basis, (rows.shape[0], *basis.shape)))

    def _shifted(self, x, centre):
        return x + centre @ self._basis(self.frame.shape[0])

    def start(self, stats: Overlaps) -> Weights:
        n, k = stats.M.shape[1:]
        if n + k >= self.d:
            raise BadInput(f"diffuse weights need d above {n + k}, the number of all directions; got {self.d}. Use a larger d.")
        at = runs_first(frame_of(stats, self.frame, n))
        W = jnp.concatenate([at.m, jnp.swapaxes(at.T, 1, 2)], axis=2) @ self._basis(k + n)
        algorithm = self.problem.algorithm
        assert isinstance(algorithm, Coordinatewise)
        kept = {name: jnp.full_like(W, value) for name, value in algorithm.coordinates.items()}
        return Weights(at.a, W, kept, stats.names)

    def step(self, state: Weights, inputs: Batch, now: StepTime) -> Weights:
        problem, x, per = self.problem.at(now.t), inputs.x, 1 / self.d
        algorithm = problem.algorithm
        assert isinstance(algorithm, Coordinatewise)
        X = jnp.swapaxes(x, 0, 1)
        fields, fixed = runs_last(products(state.W, X)), jnp.einsum("ks,rbs->kbr", self.frame, self._along(X))
        a = jnp.broadcast_to(state.a.T[:, None], fields.shape)
        G, _ = problem.model.gradient(fields, fixed, a, inputs.z, inputs.c)
        step, kept = algorithm.move(state.kept, jnp.einsum("pbr,brd->rpd", G, x) / algorithm.batch, inv_d)
        return Weights(state.a, (1 - algorithm.lr * algorithm.ridge * per) * state.W + step, dict(kept), state.names)


@sgd_process.register
def _(problem: ProjectionProblem, d: int) -> WeightProcess:
    on_axes = isinstance(problem.algorithm, Coordinatewise)
    process: type[WeightProcess] = CoordinateProcess if on_axes else WeightProcess
    return process(problem, d)
