r"""The exact chain of the summary statistics at finite dimension.

Given the statistics, one step of SGD in R^d needs of the input x only its coordinates in the span of the fixed and the trained
directions, which are Gaussian, and the norm of the rest, which is a chi-square number: the statistics are a Markov chain, and
a step costs the same at d = 10^3 and d = 10^9. The rests of a batch of inputs have a Wishart Gram matrix.
"""

from __future__ import annotations

from functools import singledispatch
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.algorithm.base import combined, is_lower, moves
from sgdlimits.algorithm.limit import Drawn, view
from sgdlimits.domain import Count, checked
from sgdlimits.errors import BadInput, check_dimension
from sgdlimits.inputs.base import Sizes
from sgdlimits.jaxtools import platform
from sgdlimits.kernel.base import StepTime
from sgdlimits.kernel.choose import gpu_present
from sgdlimits.kernel.random import Stream
from sgdlimits.level.base import Level
from sgdlimits.level.process import Process, draw_by_step
from sgdlimits.level.stepper import ProcessEngine
from sgdlimits.part import has_schedules
from sgdlimits.problem.base import Problem
from sgdlimits.problem.projection import ProjectionProblem, tested_expectation
from sgdlimits.statistics.frame import Coordinates, Frame, FieldFactor, frame_of, overlaps_of
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, rows_of, replace_scalars
from sgdlimits.statistics.trees import as_floats, runs_first
from sgdlimits.statistics.triangular import gram_schmidt


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
    batchable: ClassVar[bool] = True
    d: Count = eqx.field(static=True)

    def bind(self, problem, start, first):
        """On a processor few enough runs that the states stay in a core's cache; on an accelerator enough to fill it."""
        limit, numbers = (8192, 2**18) if platform() == "cpu" and not gpu_present() else (2**20, 2**24)
        most = int(min(limit, max(64, numbers / (problem.numerics.size * problem.numerics.samples_per_step))))
        return ProcessEngine(self, problem, most, self.d, chain_process(problem, self.d))


@singledispatch
def chain_process(problem: Problem, d: int) -> Process:
    """The exact chain of a problem; register one for a new kind of problem."""
    raise BadInput(f"no exact chain is known for {type(problem).__name__}. Use ODE(), or register one with chain_process.")


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
        self.problem, self.frame, self.d = problem, problem.frame, as_floats(d)
        self.free = None if room >= n else as_floats(np.arange(n) < room)
        self.block = max(1, min(64, 256 // (self._inputs * (n + k + 2))))

    @property
    def floats_per_run(self):
        return self._inputs * (self._directions + self.frame.shape[0] + 2) * self.block

    @property
    def fast_compile(self):
        return self.problem.network.width <= 2

    @property
    def check_interval(self):
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
        return frame_of(stats.reorder(self.problem.algorithm.order), self.frame, self.room)

    def draw(self, stream: Stream) -> Coordinates:
        if has_schedules(self.problem.model.inputs):
            return draw_by_step(self, stream)
        algorithm, n, L = self.problem.algorithm, self._directions, self._inputs
        rests = L if algorithm.uses_gram or algorithm.uses_noise else min(L, n)
        sizes = Sizes(algorithm.batch, L, self.problem.target.teachers, n, rests)
        x = self.problem.model.inputs.draw(stream, sizes, self.d)
        return x if self.free is None else x._replace(along=x.along * self.free[:, None, None])

    def step(self, state: Frame, x: Coordinates, now: StepTime) -> Frame:
        problem, names, per = self.problem.at(now.t), state.names, 1 / self.d
        algorithm, x = problem.algorithm, problem.model.inputs.place(x, self.frame)
        projected = state.project(x, self.frame[..., None])

        def one(x: Coordinates, fields, fixed, at: Frame):
            rows = {name: rows_of(names, name, problem.network.width) for name in names}
            products = lambda i, j: at.gram(rows[i], rows[j])
            inputs = lambda: per * x.gram()
            return moves(
                algorithm, view(algorithm, problem.model, per, now.t, Drawn(fields, fixed, x.z, x.c), at, products, inputs)
            )

        found, numbers = jax.vmap(one, -1, -1)(x, projected.fields, projected.fixed, state)
        C = per * jnp.concatenate([move.inputs for move in found])
        past = lambda rows, axis=0: combined(found, rows, axis)
        unit = np.repeat([move.unit for move in found], problem.network.width) if any(move.unit for move in found) else None
        m, T = projected.update(past, C, is_lower(found), self.free is None, unit)
        scalars = {**{move.name: move.scalars for move in found}, **numbers}
        return Frame(replace_scalars(state.a, scalars[STUDENT]), m, T, {name: scalars[name] for name in state.kept}, names)

    def statistics(self, state: Frame) -> Overlaps:
        return runs_first(overlaps_of(state, self.frame)).reorder(self.problem.algorithm.names)


class FactorChain(FrameChain):
    """The chain of a problem whose risk is more accurate from the factor than from the overlaps, near perfect recovery."""

    def risk(self, state: Frame, stats: Overlaps, t: Float[Array, " runs"]) -> Float[Array, " runs"]:
        model, rows = self.problem.model, rows_of(state.names, STUDENT, self.problem.network.width)
        fixed = jnp.concatenate([self.frame, jnp.zeros((model.teachers, model.width))], axis=1)
        T = state.T if len(state.names) == 1 else gram_schmidt(state.T[:, rows])

        def one(run):
            (a, m, T), t = run
            now = self.problem.at(t)
            law = now.model.law_of_factor(FieldFactor(jnp.concatenate([m, T.T], axis=1), fixed))
            return tested_expectation(now).risk_of_factor(now.model.tested, a, law)

        return self.problem.numerics.over_runs(one, (runs_first((state.a, state.m[rows], T)), t))


@chain_process.register(ProjectionProblem)
def frame_chain(problem: ProjectionProblem, d: int) -> FrameChain:
    """Return the chain of a projection problem, which reports the risk as accurately as its expectation can."""
    chain: type[FrameChain] = FactorChain if tested_expectation(problem).factored else FrameChain
    return chain(problem, d)
