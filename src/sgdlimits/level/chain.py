r"""The exact chain of the summary statistics at finite dimension.

Given the statistics, one step of SGD in R^d depends on the input x only through its coordinates in the span of the fixed and
the trained directions, which are Gaussian, and through the squared norm of its orthogonal component, which is a chi-square
variate: the statistics are a Markov chain, and a step costs the same at d = 10^3 and d = 10^9. The orthogonal components of a
batch of inputs have a Wishart Gram matrix.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.algorithm.base import compute_updates, has_lower_triangular_old_coefficients, multiply_by_old_coefficients
from sgdlimits.algorithm.limit import StepInputs, make_context
from sgdlimits.algorithm.needs import input_count, step_needs
from sgdlimits.domain import Count, checked
from sgdlimits.errors import BadInput, check_dimension
from sgdlimits.inputs import Blocks
from sgdlimits.inputs.base import StepDimensions
from sgdlimits.jaxtools import platform
from sgdlimits.kernel.base import StepTime
from sgdlimits.kernel.choose import is_gpu_available
from sgdlimits.kernel.random import Stream
from sgdlimits.level.base import Level
from sgdlimits.level.finite_data import dataset_chain
from sgdlimits.level.process import Process, draw_by_step
from sgdlimits.level.stepper import ProcessEngine
from sgdlimits.part import has_schedules
from sgdlimits.problem.base import Problem
from sgdlimits.problem.blocks import check_block_sizes
from sgdlimits.problem.projection import ProjectionProblem, risk_expectation
from sgdlimits.statistics.blocks import frame_by_block, overlaps_by_block
from sgdlimits.statistics.frame import FieldFactor, Frame, StepCoordinates, fixed_fields
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, replace_scalars, rows_of
from sgdlimits.statistics.trees import as_floats, move_runs_first
from sgdlimits.statistics.triangular import gram_schmidt


@checked
class Chain(Level):
    """The exact law of the statistics of SGD in dimension `d`, at a cost independent of d.

    Parameters
    ----------
    d : dimension, at least the number k of fixed directions; the p trained and k fixed directions may be more than d

    See Also
    --------
    sgdlimits.SGD : the same process with the weights in R^d
    sgdlimits.SDE : its approximation by a diffusion
    sgdlimits.ODE : its limit for large d
    """

    name: ClassVar[str] = "chain"
    batchable: ClassVar[bool] = True
    d: Count = eqx.field(static=True)

    def make_engine(self, problem, start, first):
        """Return the engine of the chain, with batches that fit into the cache of a CPU core or can fill a GPU."""
        max_runs, max_floats = (8192, 2**18) if platform() == "cpu" and not is_gpu_available() else (2**20, 2**24)
        floats_per_run = problem.numerics.size * problem.numerics.samples_per_step
        max_batch = int(min(max_runs, max(64, max_floats / floats_per_run)))
        process = chain_process(problem, self.d)
        return ProcessEngine(self, problem, process.fixed_batch or max_batch, self.d, process)


@singledispatch
def chain_process(problem: Problem, d: int) -> Process:
    """Return the Markov chain of a problem's statistics in dimension d; register a function for a new kind of problem."""
    raise BadInput(
        f"no exact chain is known for {type(problem).__name__}. Use ODE() or SDE(d), or register one with chain_process."
    )


class FrameChain(Process):
    r"""Markov chain of overlaps, stored as coordinates of the trained directions in an orthonormal basis of all directions.

    The n trained directions have coordinates m along the k fixed directions, and the rows of the triangular matrix T orthogonal
    to these. The b inputs X of a step have coordinates g (k-by-b) along the fixed directions, h (n-by-b) along the directions
    of T, and components orthogonal to both. An algorithm maps all directions to A times the directions plus CX (see
    `sgdlimits.algorithm.weights`), hence

    .. math:: m \leftarrow Am + Cg^\top, \qquad
              TT^\top \leftarrow (AT + Ch^\top)(AT + Ch^\top)^\top + CWC^\top ,

    where W in the last term is the Gram matrix of the orthogonal components, a Wishart matrix. The new T is the triangular
    factor of :math:`[AT + Ch^\top, K]`, :math:`KK^\top = CWC^\top`, without forming Q: by rotations for one input and a lower
    triangular A, and by Gram-Schmidt otherwise.
    """

    problem: ProjectionProblem
    frame: Float[Array, "k k"]
    d: Float[Array, ""]
    sizes: Float[Array, " blocks"] | None
    free_coordinates: Float[Array, "*blocks n"] | None
    block: int = eqx.field(static=True)

    def __init__(self, problem: ProjectionProblem, d: int) -> None:
        k, n = problem.target.teachers, problem.network.width * len(problem.algorithm.names)
        self.problem, self.frame, self.d = problem, problem.frames, as_floats(d)
        sizes = check_block_sizes(problem, check_dimension(d, k))
        self.sizes = None if problem.data.blocks is None else as_floats(sizes)
        room = np.asarray(sizes) - k
        # with fewer than n dimensions outside the fixed directions, T has fewer columns: inputs have no further coordinates
        free = as_floats(np.arange(n) < room[:, None])
        self.free_coordinates = None if (room >= n).all() else free[0] if problem.data.blocks is None else free
        # the random variates of a block should stay near the core
        self.block = max(1, min(64, 256 // (self._input_count * (n + k + 2) * len(sizes))))

    @property
    def floats_per_run(self):
        fields = self._direction_count + self.frame.shape[-1] + 2
        return self._input_count * fields * self.block * (self.problem.data.blocks or 1)

    @property
    def fast_compile(self):
        return self.problem.network.width <= 2

    @property
    def check_interval(self):
        """Number of steps between checks for divergence: the steps in 1/16 of a unit of t."""
        return self.d / (16 * self.problem.algorithm.batch)

    @property
    def _direction_count(self) -> int:
        """Number of directions in the state: those of the trained units, and those of the algorithm's memory."""
        return self.problem.network.width * len(self.problem.algorithm.names)

    @property
    def _input_count(self) -> int:
        """Number of input vectors in one step, including the noise vectors that the algorithm adds."""
        return input_count(self.problem.algorithm, self.problem.network.width)

    @property
    def max_rank(self) -> Any:
        """Largest rank that the trained directions' components orthogonal to the fixed ones can have, in each block."""
        if self.problem.data.blocks is not None:
            full = np.full(self.problem.data.blocks, self._direction_count)
            return full if self.free_coordinates is None else np.asarray(self.free_coordinates).sum(1).astype(int)
        return self._direction_count if self.free_coordinates is None else int(self.free_coordinates.sum())

    def check_start(self, stats: Overlaps) -> None:
        self.problem.coordinates.check_form(stats)  # `start` factors them

    def start(self, stats: Overlaps) -> Frame:
        return frame_by_block(stats.reorder(self.problem.algorithm.order), self.frame, self.max_rank)

    def draw(self, stream: Stream) -> StepCoordinates:
        if has_schedules(self.problem.model.inputs.without_noise()):  # the step scales input noise, not the draw
            return draw_by_step(self, stream)
        algorithm, n, L = self.problem.algorithm, self._direction_count, self._input_count
        # the orthogonal components of inputs enter through n combinations, unless a step needs the inputs' own products
        # or inputs differ in their variance
        gram = any(step_needs(algorithm, self.problem.network.width)) or self.problem.data.variance_by_class
        orthogonal_count = L if gram else min(L, n)
        sizes = StepDimensions(algorithm.batch, L, self.problem.target.teachers, n, orthogonal_count)
        x = self.problem.model.inputs.draw(stream, sizes, self.d if self.sizes is None else self.sizes)
        return (
            x
            if self.free_coordinates is None
            else x._replace(frame_coordinates=x.frame_coordinates * self.free_coordinates[..., None, None])
        )

    @property
    def _leaves_span(self) -> bool | Float[Array, " blocks"]:
        """Whether inputs have components orthogonal to all directions, for each block of coordinates if that differs."""
        if self.free_coordinates is None or self.problem.data.blocks is None:
            return self.free_coordinates is None
        return self.free_coordinates.all(axis=1)

    def step(self, state: Frame, x: StepCoordinates, now: StepTime) -> Frame:
        problem, names, inv_d = self.problem.at(now.t), state.names, 1 / self.d
        algorithm, x = problem.algorithm, problem.model.inputs.to_frame_coordinates(x, self.frame)
        projected = state.project(x, self.frame[..., None])
        clean = None if x.clean is None else fixed_fields(x.clean, self.frame[..., None])

        def updates_of_run(x: StepCoordinates, fields, fixed, clean, at: Frame):
            rows = {name: rows_of(names, name, problem.network.width) for name in names}
            products = lambda i, j: at.gram(rows[i], rows[j])
            inputs = lambda: inv_d * x.gram()
            seen = StepInputs(fields, fixed, x.z, x.c, clean)
            return compute_updates(algorithm, make_context(algorithm, problem.model, inv_d, now.t, seen, at, products, inputs))

        updates, numbers = jax.vmap(updates_of_run, -1, -1)(x, projected.fields, projected.fixed, clean, state)
        C = inv_d * jnp.concatenate([update.inputs for update in updates])
        past = lambda rows, axis=0: multiply_by_old_coefficients(updates, rows, axis)
        # names whose directions are normalised are known when the step is traced
        normalised = [update.unit for update in updates]
        unit = np.repeat(normalised, problem.network.width) if any(normalised) else None
        m, T = projected.update(past, C, has_lower_triangular_old_coefficients(updates), self._leaves_span, unit)
        scalars = {**{update.name: update.scalars for update in updates}, **numbers}
        return Frame(replace_scalars(state.a, scalars[STUDENT]), m, T, {name: scalars[name] for name in state.kept}, names)

    def statistics(self, state: Frame) -> Overlaps:
        return move_runs_first(overlaps_by_block(state, self.frame)).reorder(self.problem.algorithm.names)


class FactorChain(FrameChain):
    """Markov chain of a projection problem that computes the risk from the triangular factor of the overlaps.

    Near perfect recovery this risk is more accurate than the risk from the overlaps.
    """

    def risk(self, state: Frame, stats: Overlaps, t: Float[Array, " runs"]) -> Float[Array, " runs"]:
        model, rows = self.problem.model, rows_of(state.names, STUDENT, self.problem.network.width)
        fixed = jnp.concatenate([self.frame, jnp.zeros((model.teachers, model.width))], axis=1)
        T = state.T if len(state.names) == 1 else gram_schmidt(state.T[:, rows])

        def risk_of_run(run):
            (a, m, T), t = run
            now = self.problem.at(t)
            law = now.model.law_of_factor(FieldFactor(jnp.concatenate([m, T.T], axis=1), fixed))
            return risk_expectation(now).risk_of_factor(now.model.test_model, a, law)

        return self.problem.numerics.over_runs(risk_of_run, (move_runs_first((state.a, state.m[rows], T)), t))


@chain_process.register(ProjectionProblem)
def projection_chain(problem: ProjectionProblem, d: int) -> Process:
    """Return the chain of a projection problem in dimension d: over a dataset, or over fresh samples."""
    return make_frame_chain(problem, d) if problem.training_set is None else dataset_chain(problem, d)


def make_frame_chain(problem: ProjectionProblem, d: int) -> FrameChain:
    """Return the Markov chain of a projection problem's overlaps in dimension d, with the most accurate form of its risk."""
    by_factor = risk_expectation(problem).risk_uses_factor and not isinstance(problem.data, Blocks)
    chain: type[FrameChain] = FactorChain if by_factor else FrameChain
    return chain(problem, d)
