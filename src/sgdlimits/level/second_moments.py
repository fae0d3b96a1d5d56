"""Expectations of least squares at finite dimension, exactly, by an affine recursion on the second moments."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sgdlimits.algorithm.affine import check_affine
from sgdlimits.domain import Count, checked
from sgdlimits.errors import BadInput
from sgdlimits.inputs import Blocks, Mixture
from sgdlimits.level.base import Level
from sgdlimits.level.moments_stepper import LinearModel, MomentsStepper
from sgdlimits.level.process import SteppingEngine
from sgdlimits.model.network import TwoLayer
from sgdlimits.part import at_start, is_schedule
from sgdlimits.problem.base import Problem
from sgdlimits.problem.projection import ProjectionProblem

MAX_FLOATS_PER_BATCH = 2**20
"""Maximum number of floats in the states of one batch of runs; bounds memory."""


@checked
class SecondMoments(Level):
    r"""Expectations over the samples in dimension d, for least squares: a linear student, teacher and squared loss.

    The statistics are the exact means of those of `Chain(d)` from the same start, and the risk is the mean risk. They follow an
    affine recursion on the Gram matrices in each block, at a cost independent of d. While all rates are constant, any number of
    steps is one matrix power; otherwise each step is computed. The algorithm must be linear in the gradient at one point, such
    as `OnePassSGD`, `HeavyBall`, `Nesterov`, `Averaged`, `ScheduleFree` and `DANA`. Blocks have share times d dimensions each,
    not rounded.

    Parameters
    ----------
    d : dimension
    pieces : number of pieces per decade of time in which rates that change smoothly are held constant, for times too long to
        compute each step; None computes each step

    >>> import sgdlimits as sl
    >>> spectrum = sl.spectrum.power_law(d=10**9, exponent=1.5, blocks=80)
    >>> problem = sl.presets.least_squares(spectrum, spectrum.source(0.5), lr=1e8, noise=0.01)
    >>> data = sl.simulate(problem, sl.SecondMoments(10**9), sl.RandomInit(10**9), t_max=1000, save=2, progress=False)
    >>> int(data.step[-1]), bool(data.risk[0, -1] < 0.01)
    (1000000000000, True)
    """

    name: ClassVar[str] = "second-moments"
    d: Count = eqx.field(static=True)
    pieces: Count | None = eqx.field(static=True, default=None)

    def make_engine(self, problem, start, first):
        model = check_least_squares(problem)
        return MomentsEngine(self, problem, max(1, MAX_FLOATS_PER_BATCH // problem.numerics.size), self.d, model)


def check_least_squares(problem: Problem) -> LinearModel:
    """Return the linear model of a problem of least squares, or raise `BadInput` if it is another problem."""
    what = f"SecondMoments needs least squares; {getattr(problem, 'name', type(problem).__name__)} has"
    remedy = "Use presets.least_squares, or the level Chain(d)."
    if not isinstance(problem, ProjectionProblem):
        raise BadInput(f"{what} statistics of its own. {remedy}")
    now = at_start(problem)
    network, data, points = now.network, now.data, np.array([-2.0, -0.5, 0.0, 1.0, 3.0])
    if not (isinstance(network, TwoLayer) and network.plain and network.width == 1):
        raise BadInput(f"{what} more than one unit. {remedy}")
    if not np.allclose(network.activation(jnp.asarray(points)), points, rtol=1e-12, atol=1e-12):
        raise BadInput(f"{what} a student that is not linear. {remedy}")
    if not now.loss.quadratic:
        raise BadInput(f"{what} the loss {now.loss}. {remedy}")
    if not isinstance(data, (Blocks, Mixture)) or data.classes > 1 or not data.centred or data.has_inputs_at_means:
        raise BadInput(f"{what} inputs with classes or means. {remedy}")
    if data.has_noise or problem.training_set is not None:
        raise BadInput(f"{what} {'input noise' if data.has_noise else 'samples that are reused'}. {remedy}")
    rows = np.random.default_rng(0).standard_normal((now.target.teachers, 8))
    teacher = np.asarray(jax.vmap(now.target.readout)(np.eye(now.target.teachers)))
    if not np.allclose(now.target.readout(rows), teacher @ rows, rtol=1e-12, atol=1e-12):
        raise BadInput(f"{what} a teacher that is not linear. {remedy}")
    if is_schedule(problem.target.gram) or any(map(is_schedule, jax.tree.leaves(problem.target.readout, is_leaf=is_schedule))):
        raise BadInput(f"{what} a teacher that changes with time. {remedy}")
    check_affine(problem.algorithm, "SecondMoments")
    return LinearModel(problem, teacher)


class MomentsEngine(SteppingEngine):
    """The level `SecondMoments` bound to a problem of least squares."""

    level: Any
    problem: Problem
    max_batch: int
    d: int
    model: LinearModel

    @property
    def batch_multiple(self):
        return 1  # runs are columns of the same matrix products

    def stepper(self, starts, request, state=None):
        return MomentsStepper(self, starts, request, state)
