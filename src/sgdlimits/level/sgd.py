"""Level of description by SGD itself, with its weights in R^d."""

from __future__ import annotations

from functools import singledispatch
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sgdlimits.algorithm.base import compute_updates, multiply_by_old_coefficients
from sgdlimits.algorithm.limit import StepInputs, make_context
from sgdlimits.algorithm.needs import input_count
from sgdlimits.domain import Count, checked
from sgdlimits.errors import BadInput, check_count, check_dimension
from sgdlimits.inputs import Reused
from sgdlimits.inputs.base import StepDimensions
from sgdlimits.jaxtools import platform
from sgdlimits.kernel.base import StepTime
from sgdlimits.kernel.random import MAX_NORMALS, Stream
from sgdlimits.level.base import Level
from sgdlimits.level.process import Process, draw_by_step
from sgdlimits.level.stepper import ProcessEngine
from sgdlimits.part import has_schedules
from sgdlimits.problem.base import Problem
from sgdlimits.problem.blocks import check_block_sizes
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.statistics.blocks import frame_by_block
from sgdlimits.statistics.frame import frame_of
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, Scalars, replace_scalars, rows_of
from sgdlimits.statistics.rows import products, row_products
from sgdlimits.statistics.trees import as_floats, move_runs_first, move_runs_last

GROUP_SIZES = {4096: 1, 512: 4, 128: 8}
"""Number of runs per group by dimension d: an entry holds from its dimension on; smaller groups cost more per run."""


@checked
class SGD(Level):
    """One-pass SGD on the weights themselves, in dimension `d`: the ground truth of the other levels.

    Inputs are isotropic, so the axes are chosen with the fixed directions along the first k of them. A start given as
    statistics is converted to weights with these statistics.

    Parameters
    ----------
    d : dimension
    reuse : size n of a dataset that SGD reuses, as with `data=Reused(n)` in the problem; None takes the problem's inputs

    See Also
    --------
    sgdlimits.Chain : the same law of the statistics, at a cost independent of d
    """

    name: ClassVar[str] = "sgd"
    d: Count = eqx.field(static=True)
    reuse: Count | None = eqx.field(static=True, default=None)

    def make_engine(self, problem, start, first):
        """Return the engine of SGD in R^d, with batches small enough to bound the memory of the inputs."""
        if self.reuse is not None:
            problem = reuse_samples(problem, self.reuse)
        max_batch = int(min(4096, max(1, 2**17 // (self.d * problem.numerics.samples_per_step))))
        process = sgd_process(problem, self.d)
        return ProcessEngine(self, problem, process.fixed_batch or max_batch, self.d, process)


def reuse_samples(problem: Problem, n: int) -> Problem:
    """Return a problem whose inputs are a dataset of n samples from the law of its inputs."""
    check_count("reuse", n)
    if not isinstance(problem, ProjectionProblem):
        raise BadInput(f"reuse does not support {type(problem).__name__}. Leave out reuse.")
    if problem.training_set is not None:
        raise BadInput("the problem has a dataset of its own, data=Reused(n). Leave out reuse.")
    return problem.replace(data=Reused(n, base=problem.data))


def runs_per_group(d: int) -> int | None:
    """Return the number of runs of SGD in R^d that are computed at a time; None if all are, as on a GPU."""
    return next((size for min_d, size in GROUP_SIZES.items() if d >= min_d), None) if platform() == "cpu" else None


def steps_per_block(d: int, inputs: int, rows: int) -> int:
    """Return the number of steps whose inputs are drawn together; divergence is checked once per block.

    Parameters
    ----------
    d : dimension
    inputs : input vectors per step
    rows : rows of the weight matrix
    """
    runs = runs_per_group(d)
    # the inputs of a block should stay in a core's cache; in groups a block has at least two steps, because XLA would
    # fuse the generator of a single step into each use of its inputs and so draw them several times
    return max(1, min(16, 1024 // (d * inputs))) if runs is None else max(2, min(8, 2 * rows, 2**16 // (runs * d * inputs)))


def check_drawable(d: int) -> int:
    """Return the dimension d, or raise `BadInput` if it is too large to draw an input from one step's random stream."""
    if d >= MAX_NORMALS:
        raise BadInput(f"SGD supports d up to {MAX_NORMALS - 1}; got {d}. Use Chain(d), which has the same law.")
    return d


@singledispatch
def sgd_process(problem: Problem, d: int) -> Process:
    """Return SGD on the weights of a problem in R^d as a process; register a function for a new kind of problem."""
    raise BadInput(f"SGD does not support {type(problem).__name__}. Use ODE() or SDE(d), or register one with sgd_process.")


class WeightState(eqx.Module):
    """State of SGD in R^d: second-layer scalars, weight vectors, and the memory of the algorithm such as velocities.

    W has a row for each direction, in the order of the algorithm; the first axis of all arrays is the runs.
    """

    a: Scalars
    W: Float[Array, "runs n d"]
    kept: dict[str, Any]
    names: tuple[str, ...] = eqx.field(static=True)


class Batch(NamedTuple):
    """Inputs, label noise and classes of the samples of one step, and standard normal vectors for input noise, if any.

    Noise vectors of the algorithm are appended to the inputs.
    """

    x: Float[Array, "L runs d"]
    z: Float[Array, "b runs"]
    c: Int[Array, "b runs"]
    noise: Float[Array, "b runs d"] | None = None

    def noisy(self, variance: Float[Array, ""] | float) -> Float[Array, "L runs d"]:
        """Return the inputs that the step sees, with noise of the given variance added to the samples."""
        return self.x if self.noise is None else self.x.at[: len(self.noise)].add(jnp.sqrt(variance) * self.noise)


def joined_frames(problem: ProjectionProblem) -> Float[Array, "k axes"]:
    """Return the coordinates of the fixed directions along orthonormal axes, those of each block after one another."""
    return problem.frame if problem.data.blocks is None else as_floats(np.concatenate(problem.frames, axis=1))


class WeightProcess(Process):
    """SGD on the weights of a projection problem in R^d; the fixed directions lie along the first coordinate axes."""

    runs_axis: ClassVar[int] = 0
    problem: ProjectionProblem
    frame: Float[Array, "k axes"]
    d: int = eqx.field(static=True)
    block: int = eqx.field(static=True)

    def __init__(self, problem: ProjectionProblem, d: int) -> None:
        self.problem, algorithm = problem, problem.algorithm
        self.frame = joined_frames(problem)
        self.d = check_drawable(check_dimension(d, problem.target.teachers))
        check_block_sizes(problem, d)
        width = problem.network.width
        self.block = steps_per_block(d, input_count(algorithm, width), width * len(algorithm.names))

    @property
    def group_size(self):
        return runs_per_group(self.d)

    @property
    def inv_d(self) -> Float[Array, ""] | float:
        """The inverse 1/d of the dimension of the weights."""
        return 1 / self.d

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of axes of each block of inputs."""
        return self.problem.data.block_sizes(self.d)

    @property
    def floats_per_run(self):
        width, algorithm = self.problem.network.width, self.problem.algorithm
        return self.d * (width * len(algorithm.names) + input_count(algorithm, width) * self.block)

    def frame_coordinates(self, rows: Float[Array, "... d"]) -> Float[Array, "... k"]:
        """Return the coordinates of vectors along the fixed directions' orthonormal frame, here the first axes of R^d."""
        if self.problem.data.blocks is not None:
            return rows[..., self._axes]
        return rows[..., : self.frame.shape[0]]

    @property
    def _axes(self) -> np.ndarray:
        """Axes of R^d along which the fixed directions lie: the first k of each block."""
        begins = np.cumsum([0, *self.sizes])[:-1]
        return (begins[:, None] + np.arange(self.problem.target.teachers)).ravel()

    def _by_block(self, rows: Float[Array, "runs n d"]) -> list[Float[Array, "runs n _"]]:
        """Split vectors into their components in each block."""
        return jnp.split(rows, np.cumsum(self.sizes)[:-1], axis=-1)

    def _shift_in_frame(self, x: Float[Array, "... d"], centre: Float[Array, "... k"]) -> Float[Array, "... d"]:
        """Add to inputs the vectors with given coordinates in an orthonormal basis of the fixed directions' span."""
        if self.problem.data.blocks is not None:
            return jnp.asarray(x).at[..., self._axes].add(centre)
        return jnp.asarray(x).at[..., : self.frame.shape[0]].add(centre)

    def check_start(self, stats: Overlaps) -> None:
        self.problem.coordinates.check_form(stats)  # `start` factors them

    def start(self, stats: Overlaps) -> WeightState:
        n, k = stats.M.shape[-2:]
        if self.problem.data.blocks is not None:
            return self._start_in_blocks(stats)
        room = min(n, self.d - k)
        at = move_runs_first(frame_of(stats, self.frame, room))
        # rows of W: coordinates along the fixed directions, then T along the next axes; the law does not depend on the axes
        W: Any = np.zeros((len(at.m), n, self.d))
        W[:, :, :k], W[:, :, k : k + room] = at.m, at.T.swapaxes(1, 2)[:, :, :room]
        return WeightState(at.a, W, at.kept, stats.names)

    def _start_in_blocks(self, stats: Overlaps) -> WeightState:
        """Return weights with given overlaps in each block of coordinates, placed along the first axes of the block."""
        n, k = stats.M.shape[-2:]
        sizes = self.sizes
        rooms = np.minimum(n, np.array(sizes) - k)
        at = move_runs_first(frame_by_block(stats, self.problem.frames, rooms))
        blocks = []
        for b, (size, room) in enumerate(zip(sizes, rooms, strict=True)):
            own = np.concatenate([at.m[:, b], at.T[:, b].swapaxes(1, 2)[:, :, :room]], axis=2)
            blocks.append(np.pad(own, ((0, 0), (0, 0), (0, size - own.shape[2]))))
        return WeightState(at.a, as_floats(np.concatenate(blocks, axis=2)), at.kept, stats.names)

    def draw(self, stream: Stream) -> Batch:
        if has_schedules(self.problem.model.inputs.without_noise()):  # the step scales input noise, not the draw
            return draw_by_step(self, stream)
        algorithm, n = self.problem.algorithm, self.problem.network.width
        sizes = StepDimensions(
            algorithm.batch, input_count(algorithm, n), self.problem.target.teachers, n * len(algorithm.names), 0
        )
        inputs = self.problem.model.inputs
        drawn = inputs.draw_vectors(stream, sizes, self.d, self.frame, self._shift_in_frame)
        return Batch(*drawn, inputs.draw_noise(stream, algorithm.batch, self.d))

    def draw_samples(self, stream: Stream, n: int) -> Batch:
        """Draw n samples, those of the first n steps of a stream with one sample in each."""
        sizes = StepDimensions(1, 1, self.problem.target.teachers, 0, 0)
        drawn = self.problem.data.draw_vectors(stream.with_steps(n), sizes, self.d, self.frame, self._shift_in_frame)
        return Batch(*(leaf[:, 0] for leaf in drawn))

    def step(self, state: WeightState, inputs: Batch, now: StepTime) -> WeightState:
        problem, inv_d = self.problem.at(now.t), self.inv_d
        x = inputs.noisy(problem.data.noise_variance)
        algorithm, names = problem.algorithm, state.names
        X = jnp.swapaxes(x, 0, 1)  # runs first, as the weights have them
        fields = move_runs_last(products(state.W, X))
        along_fixed = lambda x: jnp.einsum("ks,brs->kbr", self.frame, self.frame_coordinates(x))
        fixed = along_fixed(x)
        clean = None if inputs.noise is None else along_fixed(inputs.x[: algorithm.batch])
        rows = {name: rows_of(names, name, problem.network.width) for name in names}

        def updates_of_run(drawn: StepInputs, at: WeightState, Q, K):
            among = lambda i, j: Q[rows[i], rows[j]]
            return compute_updates(algorithm, make_context(algorithm, problem.model, inv_d, now.t, drawn, at, among, lambda: K))

        gram = products(state.W, state.W), inv_d * products(X, X)  # removed by the compiler if the algorithm does not use them
        drawn = StepInputs(fields, fixed, inputs.z, inputs.c, clean)
        updates, numbers = jax.vmap(updates_of_run, (-1, 0, 0, 0), -1)(drawn, state, *gram)
        C = inv_d * jnp.concatenate([update.inputs for update in updates])
        W = jnp.moveaxis(multiply_by_old_coefficients(updates, jnp.moveaxis(state.W, 0, -1)), -1, 0) + jnp.einsum(
            "nbr,brd->rnd", C, x
        )
        if any(update.unit for update in updates):
            held = np.repeat([update.unit for update in updates], problem.network.width)
            W = W / jnp.where(held, jnp.sqrt(row_products(W, W)), 1.0)[:, :, None]
        scalars = {**move_runs_first({update.name: update.scalars for update in updates}), **numbers}
        return WeightState(replace_scalars(state.a, scalars[STUDENT]), W, {name: scalars[name] for name in state.kept}, names)

    def statistics(self, state: WeightState) -> Overlaps:
        algorithm = self.problem.algorithm
        kept = {name: state.kept[name] for name in (*algorithm.memory, *algorithm.numbers)}
        if (blocks := self.problem.data.blocks) is not None:
            inside = self.frame_coordinates(state.W).reshape(*state.W.shape[:2], blocks, -1)
            M = jnp.einsum("rpbs,kbs->rbpk", inside, self.frame.reshape(len(self.frame), blocks, -1))
            Q = jnp.stack([products(W, W) for W in self._by_block(state.W)], axis=1)
            return Overlaps(state.a, M, Q, kept, state.names)
        M = jnp.einsum("rps,ks->rpk", self.frame_coordinates(state.W), self.frame)
        return Overlaps(state.a, M, products(state.W, state.W), kept, state.names)
