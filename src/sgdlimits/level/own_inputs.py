"""SGD in R^d on inputs of a user: the rows of a data set, or the draws of a function."""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.algorithm.coordinates import CoordinatewiseAlgorithm
from sgdlimits.errors import BadInput
from sgdlimits.inputs import Rows, Sampler
from sgdlimits.inputs.base import StepDimensions
from sgdlimits.kernel.base import StepTime
from sgdlimits.kernel.random import Purpose, Stream
from sgdlimits.level.diffuse import CoordinateProcess, DiffuseProcess
from sgdlimits.level.finite_data import DatasetProcess
from sgdlimits.level.sgd import Batch, WeightProcess, WeightState, sgd_process
from sgdlimits.model.target import Target
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.statistics.overlaps import Overlaps

TEST_SAMPLES = 2**14
"""Maximum number of inputs on which the risk is measured: evenly spaced rows, or draws that no run is trained on."""
TEST_RUN = 2**32 - 1
"""Index of the run, which no simulation has, from whose random words the inputs of the risk are drawn."""


class MeasuredProcess(WeightProcess):
    """SGD in R^d whose risk is the mean loss on inputs of the user, rather than that of Gaussian inputs."""

    @abc.abstractmethod
    def _test_batch(self) -> Batch:
        """Return the inputs on which the risk is measured, with one run."""

    @property
    def _labelled(self) -> ProjectionProblem:
        """The problem with the user's labels of the rows, or with the labels of its target if the rows have none."""
        return self.problem

    def risk(self, state: WeightState, stats: Overlaps, t: Float[Array, " runs"]) -> Float[Array, " runs"]:
        x, z, c = (part[:, 0] for part in self._test_batch()[:3])
        fixed = self.frame @ self.frame_coordinates(x[None])[0].T

        def risk_of_run(run):
            (a, W), t = run
            model = self._labelled.at(t).model.test_model
            scalars = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[..., None], (*leaf.shape, len(x))), a)
            return model.sample_loss(W @ x.T, fixed, scalars, z, c).mean()

        return jax.lax.map(risk_of_run, ((state.a, state.W[:, : self.problem.network.width]), t))


class RowsProcess(MeasuredProcess):
    """SGD on the rows of a data set; labels are those of the rows, if they have some."""

    @property
    def _data(self) -> Rows:
        data = self.problem.data
        assert isinstance(data, Rows)
        return data

    @property
    def _labelled(self):
        if self._data.y is None:
            return self.problem
        return eqx.tree_at(lambda problem: problem.model.target, self.problem, _given_labels(self.problem.target))

    def step(self, state: WeightState, inputs: Batch, now: StepTime) -> WeightState:
        if self._data.y is None:
            return super().step(state, inputs, now)
        labelled = eqx.tree_at(lambda process: process.problem, self, self._labelled)
        return WeightProcess.step(labelled, state, inputs, now)

    def _test_batch(self):
        data = self._data
        at = np.linspace(0, len(data.x) - 1, min(len(data.x), TEST_SAMPLES)).round().astype(int)
        z = Stream.from_seed(0, [TEST_RUN]).normal_rows(Purpose.NOISE, len(at))[0, 0] if data.y is None else data.y[at]
        x, z, c = (jnp.asarray(part)[:, None] for part in (jnp.asarray(data.x)[at], z, jnp.asarray(data.c)[at]))
        return Batch(x, z, c)


class SampledProcess(MeasuredProcess, DiffuseProcess):
    """SGD on inputs that a function draws, with directions that are spread over all coordinates."""

    def _test_batch(self):
        sizes = StepDimensions(TEST_SAMPLES, TEST_SAMPLES, self.problem.target.teachers, self.problem.network.width, 0)
        x, z, c = self.problem.data.draw_vectors(
            Stream.from_seed(0, [TEST_RUN]), sizes, self.d, self.frame, self._shift_in_frame
        )
        return Batch(x[0], z[0], c[0])


def _given_labels(target: Target) -> Target:
    """Return a target whose label is the label noise of a sample: the rows of a data set store the user's labels there."""
    return Target(_no_label, teachers=target.teachers, noise=1.0, gram=target.gram)


def _no_label(fixed: Any) -> Any:
    """Return zero, the label of every input before the label noise is added."""
    return 0.0 * fixed[0]


@sgd_process.register
def _(problem: ProjectionProblem, d: int) -> WeightProcess | DatasetProcess:
    data, on_axes = problem.data, isinstance(problem.algorithm, CoordinatewiseAlgorithm)
    if on_axes and (data.blocks is not None or isinstance(data, (Rows, Sampler))):
        raise BadInput(
            f"{type(problem.algorithm).__name__} treats coordinates separately, which supports Gaussian inputs of one block "
            "only. Use another algorithm, such as OnePassSGD."
        )
    kind: type[WeightProcess] = CoordinateProcess if on_axes else WeightProcess
    if isinstance(data, Rows):
        kind = RowsProcess
    elif isinstance(data, Sampler):
        kind = SampledProcess
    process = kind(problem, d)
    return process if problem.training_set is None else DatasetProcess(process)
