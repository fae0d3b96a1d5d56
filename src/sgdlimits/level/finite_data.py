r"""SGD over a dataset of n samples that each run draws once and reuses: in R^d, and in the span that the weights never leave.

The weights stay in the span of the start, the k fixed directions and the n samples. In orthonormal coordinates of this span,
with the k fixed directions first, the start of P directions next, and one more axis for each sample, the samples have k + P
independent standard normal coordinates (around their means), and beyond these the triangular Bartlett factor of a Wishart
matrix with d - k - P degrees of freedom. One draw of these n rows thus makes every step exact and free of d: it is SGD in
min(d, k + P + n) dimensions. Where n is so large that the span is all of R^d, the samples are drawn in R^d.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sgdlimits.algorithm.coordinates import CoordinatewiseAlgorithm
from sgdlimits.algorithm.needs import input_count
from sgdlimits.errors import BadInput, check_dimension
from sgdlimits.inputs.base import StepDimensions
from sgdlimits.inputs.masks import MaskedInputs
from sgdlimits.kernel.base import StepTime
from sgdlimits.kernel.random import Purpose, Stream
from sgdlimits.level.process import Process
from sgdlimits.level.sgd import Batch, WeightProcess, WeightState, joined_frames
from sgdlimits.part import has_schedules
from sgdlimits.problem.blocks import check_block_sizes
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, rows_of
from sgdlimits.statistics.rows import products
from sgdlimits.statistics.trees import as_floats, repeat_for_samples

FLOATS_PER_STEP = 2**14
"""Number of coordinates of the weights of a batch, up to which several runs share the overhead of a step."""
FLOATS_IN_MEMORY = 2**23
"""Number of floats in the datasets of a batch, up to which several runs are computed together; the same for one drawing."""


class Dataset(NamedTuple):
    """Samples of the dataset that each run reuses: coordinates of the inputs, label noise and classes."""

    x: Float[Array, "runs n axes"]
    z: Float[Array, "runs n"]
    c: Int[Array, "runs n"]


class DatasetState(eqx.Module):
    """Weights, and the order of the samples in the present epoch if it differs between epochs and runs, otherwise None."""

    weights: WeightState
    order: Int[Array, "runs n"] | None


class Picks(NamedTuple):
    """Random variates of a step over a dataset: the samples, or what they are computed from, and the masks of units.

    Parameters
    ----------
    sample : number of each sample in the batch, or its position in the epoch if the order is shuffled
    uniform : uniform variates that shuffle the order; None for other orders
    mask : what is added to the classes to encode masks of units; None without dropout
    """

    sample: Int[Array, "*steps b"] | Int[Array, "*steps b runs"]
    uniform: Float[Array, "*steps b runs"] | None
    mask: Int[Array, "*steps b runs"] | None


class SpanProcess(WeightProcess):
    """SGD in the span of the start, the fixed directions and the samples of a dataset, at dimension d.

    `d` of a `WeightProcess` is here the number of axes; `dimension` is that of the inputs.
    """

    dimension: Float[Array, ""]
    dimensions: Float[Array, "*blocks"]
    axes: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, problem: ProjectionProblem, d: int) -> None:
        assert problem.training_set is not None
        self.problem, self.frame, self.block = problem, joined_frames(problem), 1
        sizes = check_block_sizes(problem, check_dimension(d, problem.target.teachers))
        self.dimension, self.dimensions = as_floats(d), as_floats(d if problem.data.blocks is None else sizes)
        most = problem.target.teachers + self.direction_count + problem.training_set.n
        self.axes = tuple(min(size, most) for size in sizes)
        self.d = sum(self.axes)

    @property
    def direction_count(self) -> int:
        """Number of directions in the state: those of the units, and those of the algorithm's memory."""
        return self.problem.network.width * len(self.problem.algorithm.names)

    @property
    def inv_d(self):
        return 1 / self.dimension

    @property
    def sizes(self):
        return self.axes

    def draw_samples(self, stream: Stream, n: int) -> Batch:
        """Draw the coordinates of n inputs in the span, and their label noise and classes."""
        data, B = self.problem.data, self.problem.frames
        sizes = StepDimensions(n, n, self.problem.target.teachers, self.direction_count, n)
        drawn = jax.tree.map(lambda leaf: leaf[0], data.draw(stream, sizes, self.dimensions))
        placed = data.to_frame_coordinates(drawn, B)
        coordinates = [np.asarray(part) for part in placed[:4]]
        blocks = [coordinates] if data.blocks is None else zip(*coordinates, strict=True)
        rows = [_sample_rows(*block)[..., :axes] for block, axes in zip(blocks, self.axes, strict=True)]
        return Batch(as_floats(np.moveaxis(np.concatenate(rows, axis=2), 0, 1)), placed.z, placed.c)


def _sample_rows(inside, along, outside, below) -> Float[np.ndarray, "runs n axes"]:
    """Return the coordinates of samples in one block: along all directions at the start, and in a triangular factor."""
    move_runs_first = lambda leaf: np.moveaxis(leaf, (0, -1), (-1, 0))
    n, runs = outside.shape
    factor = np.zeros((runs, n, n))
    factor[:, np.arange(n), np.arange(n)] = np.sqrt(outside).T
    factor[:, *np.tril_indices(n, -1)] = below.T
    return np.concatenate([move_runs_first(inside), move_runs_first(along), factor], axis=2)


class DatasetProcess(Process):
    """SGD over a dataset of n samples that each run draws once, in the coordinates of a `WeightProcess`."""

    runs_axis = 0
    base: WeightProcess
    n: int = eqx.field(static=True)
    order: str = eqx.field(static=True)
    block: int = eqx.field(static=True)

    def __init__(self, base: WeightProcess) -> None:
        problem, algorithm = base.problem, base.problem.algorithm
        assert problem.training_set is not None
        self.base, (self.n, self.order) = base, problem.training_set
        self.block = max(1, min(64, 4096 // algorithm.batch))
        check_dataset(problem)

    @property  # type: ignore[misc]  # a property for a field
    def problem(self) -> ProjectionProblem:  # type: ignore[override]
        return self.base.problem

    @property
    def batch(self) -> int:
        """Number of samples in one step of SGD over the dataset."""
        return self.problem.algorithm.batch

    @property
    def fixed_batch(self):
        weights = self.base.d * self.problem.network.width * len(self.problem.algorithm.names)
        most = min(FLOATS_PER_STEP // weights, FLOATS_IN_MEMORY // (self.n * self.base.d))
        return 2 ** max(0, most.bit_length() - 1)

    @property
    def floats_per_run(self):
        width, algorithm = self.problem.network.width, self.problem.algorithm
        # a draw takes about six times the memory of the factor, or of the vectors
        return 6 * self._floats_drawn + self.base.d * (width * len(algorithm.names) + self.batch)

    @property
    def _floats_drawn(self) -> int:
        """Number of coordinates that are drawn for the dataset of one run."""
        return self.n * (self.n * len(self.base.sizes) if isinstance(self.base, SpanProcess) else self.base.d)

    def check_start(self, stats: Overlaps) -> None:
        self.base.check_start(stats)

    def start(self, stats: Overlaps) -> DatasetState:
        weights = self.base.start(stats)
        order = jnp.tile(jnp.arange(self.n, dtype=np.int32), (len(weights.W), 1)) if self._shuffles else None
        return DatasetState(weights, order)

    @property
    def _takes_all(self) -> bool:
        """Whether each step takes all samples of the dataset once, as in full-batch gradient descent."""
        return self.batch == self.n and self.order != "random"

    @property
    def _shuffles(self) -> bool:
        """Whether the dataset is put into a new random order in each epoch."""
        return self.order == "shuffled" and not self._takes_all

    def draw_dataset(self, stream: Stream) -> Dataset:
        runs, position = np.unique(np.asarray(stream.runs), return_inverse=True)  # padding repeats a run
        # A few runs at a time, because the random words of a dataset take several times its memory.
        size = max(1, FLOATS_IN_MEMORY // self._floats_drawn)
        groups = np.split(runs, range(size, len(runs), size))
        drawn = (self.base.draw_samples(stream.select_runs(group), self.n) for group in groups)
        # inputs, label noise and classes: a dataset has no input noise
        parts = zip(*(map(np.asarray, each[:3]) for each in drawn), strict=True)
        return Dataset(*(jnp.asarray(np.moveaxis(np.concatenate(part, axis=1), 1, 0)[position]) for part in parts))

    def draw(self, stream: Stream) -> Picks:
        b, n, inputs = self.batch, self.n, self.problem.model.inputs
        each = stream.split_into_samples(b)
        number = (each.first + jnp.arange(each.steps, dtype=np.uint64)) % np.uint64(n)
        sample, shape = number.astype(np.int32).reshape(-1, b), (stream.steps, b, stream.runs.size)
        no_class = jnp.zeros(shape, np.int32)
        mask = inputs.add_masks(no_class, stream) if isinstance(inputs, MaskedInputs) else None
        if self.order == "cyclic" or self._takes_all:
            return Picks(sample, None, mask)
        uniform = each.uniform(Purpose.ORDER, 1).reshape(shape)
        return Picks(sample, uniform, mask) if self._shuffles else Picks(_pick_below(uniform, n), None, mask)

    def step(self, state: DatasetState, variates: tuple[Picks, Dataset], now: StepTime) -> DatasetState:
        (sample, uniform, mask), dataset = variates
        order = state.order
        if order is not None and uniform is not None:
            order, sample = _continue_shuffle(order, sample, uniform)
        if self._takes_all:
            rows = dataset
        elif sample.ndim == 1:
            rows = jax.tree.map(lambda leaf: leaf[:, sample], dataset)
        else:
            rows = jax.vmap(lambda own, i: jax.tree.map(lambda leaf: leaf[i], own))(dataset, sample.T)
        x, z, c = (jnp.swapaxes(leaf, 0, 1) for leaf in rows)
        return DatasetState(self.base.step(state.weights, Batch(x, z, c if mask is None else c + mask), now), order)

    def statistics(self, state: DatasetState) -> Overlaps:
        return self.base.statistics(state.weights)

    def training_observables(self, state, dataset, t):
        """Compute the mean loss over the dataset of each run, and the share of right predictions if labels are classes."""
        base, weights = self.base, state.weights
        W = weights.W[:, rows_of(weights.names, STUDENT, self.problem.network.width)]
        fields = products(W, dataset.x)
        fixed = jnp.einsum("ks,rns->rkn", base.frame, base.frame_coordinates(dataset.x))

        def means_of_run(fields, fixed, a, z, c, t):
            model, a = self.problem.at(t).model.test_model, repeat_for_samples(a, self.n)
            prediction, label = model.network.output(fields, a, c, None), model.target.label(fixed, z, c)
            means = {"train_risk": model.loss(prediction, label).mean()}
            if model.loss.classifies:
                means["train_accuracy"] = model.loss.probability_correct(prediction, label).mean()
            return means

        return jax.vmap(means_of_run)(fields, fixed, weights.a, dataset.z, dataset.c, t)


def _pick_below(uniform: Float[Array, "..."], limit: Any) -> Int[Array, "..."]:
    """Return integers from 0 on below a limit, from uniform variates in (0, 1]."""
    return jnp.minimum(jnp.floor(uniform * limit), limit - 1).astype(np.int32)


def _continue_shuffle(
    order: Int[Array, "runs n"], position: Int[Array, " b"], uniform: Float[Array, "b runs"]
) -> tuple[Int[Array, "runs n"], Int[Array, "b runs"]]:
    """Draw the samples at the next positions of an epoch from those that it has not taken yet.

    Each is swapped to its position in `order`, as in the shuffle of Fisher and Yates: the order is a uniform permutation at the
    end of each epoch, whatever it was at the beginning.
    """

    def swap(order, now):
        position, uniform = now
        other = position + _pick_below(uniform, order.shape[1] - position)
        taken = jnp.take_along_axis(order, other[:, None], axis=1)[:, 0]
        order = jax.vmap(lambda own, i, j, sample: own.at[i].set(own[j]).at[j].set(sample))(
            order, other, jnp.broadcast_to(position, other.shape), taken
        )
        return order, taken

    return jax.lax.scan(swap, order, (position, uniform))


def check_dataset(problem: ProjectionProblem) -> None:
    """Raise `BadInput` if a problem's batch, algorithm or labels do not fit a dataset that is reused."""
    assert problem.training_set is not None
    algorithm, n = problem.algorithm, problem.training_set.n
    if algorithm.batch > n:
        raise BadInput(f"a batch of {algorithm.batch} has more samples than the dataset, n = {n}. Give a smaller batch.")
    if input_count(algorithm, problem.network.width) != algorithm.batch:
        raise BadInput(f"{type(algorithm).__name__} adds noise of its own, which cannot be reused. Leave out reuse.")
    if has_schedules(problem.target):
        raise BadInput("the labels of a dataset are fixed, and the target changes with time. Give a target without schedules.")


def dataset_chain(problem: ProjectionProblem, d: int) -> DatasetProcess:
    """Return SGD over a dataset at dimension d in coordinates of the span of all weights, or in R^d where that is no larger."""
    if isinstance(problem.algorithm, CoordinatewiseAlgorithm):
        raise BadInput(
            f"{type(problem.algorithm).__name__} treats coordinates separately, so that no exact chain is known for it. "
            "Use SGD(d)."
        )
    assert problem.training_set is not None
    fills = d <= problem.target.teachers + problem.network.width * len(problem.algorithm.names) + problem.training_set.n
    # The span may be all of R^d, where coordinates of samples are independent: d n numbers to draw, and not n^2.
    return DatasetProcess(WeightProcess(problem, d) if fills and problem.data.blocks is None else SpanProcess(problem, d))
