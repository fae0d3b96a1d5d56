"""SGD in R^d with directions spread over all coordinates, for what is not invariant under rotations."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdlimits.algorithm.coordinates import CoordinatewiseAlgorithm
from sgdlimits.errors import BadInput
from sgdlimits.kernel.base import StepTime
from sgdlimits.level.sgd import Batch, WeightProcess, WeightState
from sgdlimits.statistics.frame import frame_of
from sgdlimits.statistics.rows import products
from sgdlimits.statistics.trees import move_runs_first, move_runs_last


class DiffuseProcess(WeightProcess):
    """SGD in R^d with fixed directions and initial weights that are spread over all axes, along a cosine basis.

    The coordinate axes matter for inputs that are not Gaussian, and for algorithms that treat coordinates separately.
    """

    def _cosine_basis(self, rows: int) -> Float[np.ndarray, "rows d"]:
        """Return the first `rows` vectors of a discrete cosine basis of R^d, whose coordinates are all of order 1/sqrt(d)."""
        angles = np.pi * np.outer(np.arange(1, rows + 1), np.arange(self.d) + 0.5) / self.d
        return np.sqrt(2 / self.d) * np.cos(angles)

    def frame_coordinates(self, rows):
        basis = self._cosine_basis(self.frame.shape[0])
        return products(rows, jnp.broadcast_to(basis, (rows.shape[0], *basis.shape)))

    def _shift_in_frame(self, x, centre):
        return x + centre @ self._cosine_basis(self.frame.shape[0])

    def start(self, stats):
        n, k = stats.M.shape[1:]
        if n + k >= self.d:
            raise BadInput(
                f"diffuse weights need d above {n + k}, the number of trained and fixed directions; got {self.d}. "
                "Use a larger d."
            )
        at = move_runs_first(frame_of(stats, self.frame, n))
        W = jnp.concatenate([at.m, jnp.swapaxes(at.T, 1, 2)], axis=2) @ self._cosine_basis(k + n)
        return WeightState(at.a, W, self._initial_memory(at.kept, W), stats.names)

    def _initial_memory(self, kept: dict[str, Any], W: Float[jnp.ndarray, "runs n d"]) -> dict[str, Any]:
        """Return the memory of the algorithm at the start."""
        return kept


class CoordinateProcess(DiffuseProcess):
    """SGD in R^d by an algorithm that treats each coordinate separately, such as Adam.

    The state has the algorithm's memory of each coordinate; the statistics do not.
    """

    def _initial_memory(self, kept, W):
        algorithm = self.problem.algorithm
        assert isinstance(algorithm, CoordinatewiseAlgorithm)
        return {name: jnp.full_like(W, value) for name, value in algorithm.coordinates.items()}

    def step(self, state: WeightState, inputs: Batch, now: StepTime) -> WeightState:
        problem, inv_d = self.problem.at(now.t), self.inv_d
        x = inputs.noisy(problem.data.noise_variance)
        algorithm = problem.algorithm
        assert isinstance(algorithm, CoordinatewiseAlgorithm)
        X = jnp.swapaxes(x, 0, 1)
        fields = move_runs_last(products(state.W, X))
        # labels are those of the inputs without noise
        fixed = jnp.einsum("ks,rbs->kbr", self.frame, self.frame_coordinates(jnp.swapaxes(inputs.x, 0, 1)))
        a = jnp.broadcast_to(state.a.T[:, None], fields.shape)
        G, _ = problem.model.gradient(fields, fixed, a, inputs.z, inputs.c)
        # unlike directions, memory of single coordinates cannot be combined from inputs: the mean gradient itself is formed
        step, kept = algorithm.update_coordinates(state.kept, jnp.einsum("pbr,brd->rpd", G, x) / algorithm.batch, inv_d)
        return WeightState(state.a, (1 - algorithm.lr * algorithm.ridge * inv_d) * state.W + step, dict(kept), state.names)
