r"""The linear diffusion that the chain becomes near a fixed point.

Around a fixed point :math:`u^*` of the drift the magnified statistics :math:`y = \sqrt d\,(u - u^*)` obey, as d grows,

.. math:: dy = J y\, dt + \Sigma^{1/2} dB,

where J is the Jacobian of the drift and :math:`\Sigma` the covariance of one sample's increment (times d), both at the point.
Over any time h its transition is Gaussian, with mean :math:`e^{Jh} y` and covariance
:math:`\int_0^h e^{Js}\Sigma e^{J^\top s} ds`.
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, PyTree

from sgdlimits.domain import Count, Positive, Statistics, checked
from sgdlimits.errors import BadInput
from sgdlimits.kernel.base import StepTime
from sgdlimits.kernel.random import Purpose, Stream
from sgdlimits.level.base import Level
from sgdlimits.level.process import Process, Segments, SteppingEngine
from sgdlimits.level.stepper import ProcessStepper
from sgdlimits.problem.base import Problem
from sgdlimits.problem.over_time import fix_time
from sgdlimits.statistics.trees import as_batch, runs_first

STEP_TIMES_RATE = 0.025
NOTHING = 1e-12
"""Coordinates below are zero: on which side of a kink they lie is rounding."""


@checked
class Local(Level):
    r"""The diffusive limit at a fixed point: :math:`u^* + y/\sqrt d` with the linear diffusion y, in law exact at any step.

    Parameters
    ----------
    point : :math:`u^*`, statistics of one run; what the algorithm holds stays as it is there
    d : dimension, which sets the scale of the fluctuations; None takes that of the start where it has one
    dt : the step in t at which `until` is asked; None takes a fortieth of the fastest time scale, and at least one step of SGD

    Notes
    -----
    Without `until` there is one step between saved times. The point need not be fixed for this level to run, but then it
    describes nothing: `local_limit` checks.

    See Also
    --------
    sgdlimits.local_limit : the same limit, its rates and its stationary covariance
    sgdlimits.SDE : the diffusion away from fixed points

    References
    ----------
    .. [2] Ben Arous, Gheissari, Jagannath, *High-dimensional limit theorems for SGD: effective dynamics and critical scaling*.
    """

    name: ClassVar[str] = "local"
    leaves_cone: ClassVar[bool] = True
    point: Statistics
    d: Count | None = eqx.field(static=True, default=None)
    dt: Positive | None = eqx.field(static=True, default=None)

    def view(self, problem):
        return fix_time(problem, None, "Give problem.at(t).").limit

    def bind(self, problem, start, first):
        d = getattr(start, "d", None) if self.d is None else self.d
        if d is None:
            raise BadInput("the scale of the fluctuations is not known: this start has no dimension. Give Local(point, d=...).")
        problem, point = self.view(problem), problem.coordinates.in_limit(self.point)
        problem.coordinates.check(as_batch(point))
        _, J, Sigma = linearise_at(problem, point)
        fastest = max(1e-6, float(np.abs(np.linalg.eigvals(J)).max()))
        dt = self.dt or max(problem.numerics.samples_per_step / d, STEP_TIMES_RATE / fastest)
        most = int(min(4096, max(64, 2**18 / problem.numerics.size)))
        return LocalEngine(Local(point, d, self.dt), problem, most, d, J, Sigma, dt)


class LocalEngine(SteppingEngine):
    """An engine of exact steps: one between saved times, unless `until` is to be asked more often, about every dt."""

    level: Local
    problem: Problem
    max_batch: int
    d: int
    J: np.ndarray
    Sigma: np.ndarray
    dt: float

    def stepper(self, starts, request, state=None):
        gaps = np.diff(request.clock.t)
        counts = np.ones(gaps.size, np.int64) if request.until is None else np.ceil(gaps / self.dt - 1e-9).astype(np.int64)
        segments = Segments(counts, gaps / counts, request.clock.t[:-1], np.zeros(gaps.size))
        return ProcessStepper(
            self._process(segments.sizes, 1 if request.until is None else 16), starts, request, segments, state
        )

    def _process(self, sizes: np.ndarray, block: int) -> LinearDiffusion:
        sizes = np.unique(sizes)
        factors, kicks = map(np.stack, zip(*(transition(self.J, self.Sigma, size) for size in sizes), strict=True))
        point = self.level.point
        free = tuple(np.flatnonzero(self.problem.coordinates.moves(point)).tolist())
        steps = dict(sizes=sizes, factors=factors, kicks=kicks / np.sqrt(self.d))
        return LinearDiffusion(problem=self.problem, point=point, free=free, block=block, **steps)


def linearise_at(problem: Problem, point: PyTree) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(drift, J, Sigma) at a point, in the free coordinates of `problem.vector`.

    A field at the kink of a piecewise linear unit stays there: its slope is that of the kink itself, not a smoothed one.
    """
    free = np.flatnonzero(problem.coordinates.moves(point))
    drift, J, Sigma = (np.asarray(part) for part in _linear_parts(problem, problem.numerics.without_smoothing(), point))
    return drift[free], J[np.ix_(free, free)], Sigma[np.ix_(free, free)]


@eqx.filter_jit
def _linear_parts(problem: Problem, sharp: Problem, point: PyTree):
    vector = problem.vector(point)
    vector = jnp.where(jnp.abs(vector) < NOTHING, 0.0, vector)
    along = lambda vector: problem.vector(sharp.drift(problem.from_vector(vector, point)))
    return along(vector), jax.jacfwd(along)(vector), problem.covariance(problem.from_vector(vector, point))


def transition(J: np.ndarray, Sigma: np.ndarray, h: float) -> tuple[np.ndarray, np.ndarray]:
    r"""(:math:`e^{Jh}`, a root of :math:`\int_0^h e^{Js}\Sigma e^{J^\top s} ds`) by one matrix exponential (Van Loan).

    >>> factor, kick = transition(np.array([[-1.0]]), np.array([[2.0]]), 0.5)
    >>> bool(np.allclose([factor**2, kick**2], [[[np.exp(-1.0)]], [[1 - np.exp(-1.0)]]]))
    True
    """
    n = len(J)
    halvings = max(0, int(np.ceil(np.log2(max(np.abs(J).sum(1).max() * h, 1e-300)))))
    small = h / 2**halvings
    block = scipy.linalg.expm(small * np.block([[-J, Sigma], [np.zeros((n, n)), J.T]]))
    factor = block[n:, n:].T
    covariance = factor @ block[:n, n:]
    for _ in range(halvings):
        covariance, factor = covariance + factor @ covariance @ factor.T, factor @ factor
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return factor, (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


class LinearDiffusion(Process):
    """Exact steps of a linear diffusion of the free coordinates, relative to the point, for a few step sizes.

    Parameters
    ----------
    problem, point : where the diffusion lives
    sizes : the step sizes in t, increasing
    factors, kicks : what multiplies the state and standard normal numbers in a step of each size
    free : which entries of `problem.vector` move
    """

    problem: Problem
    point: PyTree
    sizes: Float[Array, " sizes"]
    factors: Float[Array, "sizes n n"]
    kicks: Float[Array, "sizes n n"]
    free: tuple[int, ...] = eqx.field(static=True)
    block: int = eqx.field(static=True)

    @eqx.filter_jit
    def start(self, stats: PyTree) -> Float[Array, "n runs"]:
        """The free coordinates relative to the point."""
        centre, free = self.problem.vector(self.point), np.asarray(self.free)
        return jax.vmap(lambda one: (self.problem.vector(one) - centre)[free], out_axes=-1)(stats)

    def draw(self, stream: Stream) -> Float[Array, "steps n runs"]:
        return stream.normal(Purpose.NOISE, len(self.free))

    def step(self, state, numbers, now: StepTime):
        which = jnp.argmin(jnp.abs(self.sizes - now.size))
        return jnp.asarray(self.factors)[which] @ state + jnp.asarray(self.kicks)[which] @ numbers

    def statistics(self, state: Float[Array, "n runs"]) -> PyTree:
        centre = self.problem.vector(self.point)
        place = lambda x: self.problem.from_vector(centre.at[np.asarray(self.free)].add(x), self.point)
        return jax.vmap(place)(runs_first(state))
