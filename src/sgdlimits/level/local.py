r"""The level `Local`: a linear diffusion that approximates the chain near a fixed point of the ODE.

Around a fixed point :math:`u^*` of the drift the rescaled statistics :math:`y = \sqrt d\,(u - u^*)` obey, as d grows,

.. math:: dy = J y\, dt + \Sigma^{1/2} dB,

where J is the Jacobian of the drift and :math:`\Sigma` the covariance of one sample's increment (times d), both at
:math:`u^*`, and B is Brownian motion. Over any time h its transition is Gaussian, with mean :math:`e^{Jh} y` and covariance
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
from sgdlimits.level.process import Process, SteppingEngine
from sgdlimits.level.segments import Segments
from sgdlimits.level.stepper import ProcessStepper
from sgdlimits.problem.base import Problem
from sgdlimits.problem.over_time import evaluate_at_time_if_needed
from sgdlimits.statistics.trees import move_runs_first, to_batch

STEP_TIMES_RATE = 0.025
"""Default time between evaluations of the stop condition, in units of the inverse of the drift's fastest rate."""
ZERO_COORDINATE = 1e-12
"""Size up to which coordinates count as zero, so that rounding does not decide on which side of a kink a field is."""


@checked
class Local(Level):
    r"""The diffusive limit at a fixed point :math:`u^*`: statistics :math:`u^* + y/\sqrt d`, with a linear diffusion y.

    Steps of any length have the exact law of this diffusion.

    Parameters
    ----------
    point : :math:`u^*`, statistics of one run; coordinates that the algorithm does not change keep their value at the point
    d : dimension, which sets the scale of the fluctuations; None takes the dimension of the start if it has one
    dt : time between evaluations of `until`; None takes a fortieth of the fastest time scale, and at least one step of SGD

    Notes
    -----
    Without `until` there is one step between saved times. The level runs at any point, but is meaningless unless the point is
    fixed; `local_limit` checks that.

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

    def adapt_problem(self, problem):
        return evaluate_at_time_if_needed(problem, None, "Give problem.at(t).").limit

    def make_engine(self, problem, start, first):
        d = getattr(start, "d", None) if self.d is None else self.d
        if d is None:
            raise BadInput("the scale of the fluctuations is not known: the start has no dimension. Give Local(point, d=...).")
        problem, point = self.adapt_problem(problem), problem.coordinates.in_limit(self.point)
        problem.coordinates.check(to_batch(point))
        _, J, Sigma = linearise_at(problem, point)
        fastest = max(1e-6, float(np.abs(np.linalg.eigvals(J)).max()))  # bounded below, so that dt is finite if J = 0
        dt = self.dt or max(problem.numerics.samples_per_step / d, STEP_TIMES_RATE / fastest)
        max_batch = int(min(4096, max(64, 2**18 / problem.numerics.size)))  # at most 2^18 floats, to bound memory
        return LocalEngine(Local(point, d, self.dt), problem, max_batch, d, J, Sigma, dt)


class LocalEngine(SteppingEngine):
    """The level `Local` bound to a problem: it makes exact steps of the linear diffusion near a fixed point.

    The engine makes one step between saved times or, with a stop condition, equal steps of at most about dt.
    """

    level: Local
    problem: Problem
    max_batch: int
    d: int
    J: np.ndarray
    Sigma: np.ndarray
    dt: float

    def stepper(self, starts, request, state=None):
        gaps = np.diff(request.clock.t)
        # a gap of a whole number of dt up to rounding gets no additional step
        counts = np.ones(gaps.size, np.int64) if request.until is None else np.ceil(gaps / self.dt - 1e-9).astype(np.int64)
        segments = Segments.from_whole_steps(counts, gaps / counts, request.clock.t[:-1])
        block = 1 if request.until is None else 16
        return ProcessStepper(self._process(segments.sizes, block), starts, request, segments, state)

    def _process(self, sizes: np.ndarray, block: int) -> LinearDiffusion:
        """Return the linear diffusion with the transition matrices of all step sizes that the saved times need."""
        sizes = np.unique(sizes)
        factors, kicks = map(np.stack, zip(*(compute_transition(self.J, self.Sigma, size) for size in sizes), strict=True))
        point = self.level.point
        free = tuple(np.flatnonzero(self.problem.coordinates.moves(point)).tolist())
        steps = dict(sizes=sizes, decay_factors=factors, noise_factors=kicks / np.sqrt(self.d))
        return LinearDiffusion(problem=self.problem, point=point, free_coordinates=free, block=block, **steps)


def linearise_at(problem: Problem, point: PyTree) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return drift, Jacobian of the drift and noise covariance at a point, in the coordinates that training can change.

    Kinks of piecewise linear units are not smoothed: a field exactly at a kink has the slope that the activation defines there.
    """
    free = np.flatnonzero(problem.coordinates.moves(point))
    drift, J, Sigma = (np.asarray(part) for part in _linearise_all(problem, problem.numerics.without_smoothing(), point))
    return drift[free], J[np.ix_(free, free)], Sigma[np.ix_(free, free)]


@eqx.filter_jit
def _linearise_all(problem: Problem, unsmoothed: Problem, point: PyTree):
    """Return the drift, its Jacobian and the noise covariance at a point, in all coordinates of `problem.vector`."""
    vector = problem.vector(point)
    vector = jnp.where(jnp.abs(vector) < ZERO_COORDINATE, 0.0, vector)
    drift = lambda vector: problem.vector(unsmoothed.drift(problem.from_vector(vector, point)))
    return drift(vector), jax.jacfwd(drift)(vector), problem.covariance(problem.from_vector(vector, point))


def compute_transition(J: np.ndarray, Sigma: np.ndarray, h: float) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the matrices of an exact step of length h of the linear diffusion with drift matrix J and noise covariance Sigma.

    The first matrix, which multiplies the state, is :math:`e^{Jh}`; the second, which multiplies the noise, is the symmetric
    root of :math:`\int_0^h e^{Js}\Sigma e^{J^\top s} ds`. Both come from one matrix exponential (Van Loan).

    >>> factor, kick = compute_transition(np.array([[-1.0]]), np.array([[2.0]]), 0.5)
    >>> bool(np.allclose([factor**2, kick**2], [[[np.exp(-1.0)]], [[1 - np.exp(-1.0)]]]))
    True
    """
    n = len(J)
    # e^{-Jh}, a block of the exponential, overflows for large h: halve h until |J| h <= 1, and compose the steps afterwards
    halvings = max(0, int(np.ceil(np.log2(max(np.abs(J).sum(1).max() * h, 1e-300)))))
    small = h / 2**halvings
    block = scipy.linalg.expm(small * np.block([[-J, Sigma], [np.zeros((n, n)), J.T]]))
    factor = block[n:, n:].T
    covariance = factor @ block[:n, n:]
    for _ in range(halvings):  # two steps of half the length: the factor of the second acts on the noise of the first
        covariance, factor = covariance + factor @ covariance @ factor.T, factor @ factor
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)  # symmetric up to rounding, with small values below 0
    return factor, (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


class LinearDiffusion(Process):
    """Exact steps of the linear diffusion of the statistics around a fixed point, for a given list of step sizes.

    Parameters
    ----------
    problem : problem whose statistics diffuse
    point : statistics of the fixed point
    sizes : step sizes in t, increasing
    factors : for each step size, the matrix that multiplies the state
    kicks : for each step size, the matrix that multiplies standard normal variates
    free : indices of the entries of `problem.vector` that change
    block : number of steps whose variates are drawn together
    """

    problem: Problem
    point: PyTree
    sizes: Float[Array, " sizes"]
    decay_factors: Float[Array, "sizes n n"]
    noise_factors: Float[Array, "sizes n n"]
    free_coordinates: tuple[int, ...] = eqx.field(static=True)
    block: int = eqx.field(static=True)

    @eqx.filter_jit
    def start(self, stats: PyTree) -> Float[Array, "n runs"]:
        """Return, for each run, the coordinates that can change, relative to the fixed point."""
        centre, free = self.problem.vector(self.point), np.asarray(self.free_coordinates)
        return jax.vmap(lambda one: (self.problem.vector(one) - centre)[free], out_axes=-1)(stats)

    def draw(self, stream: Stream) -> Float[Array, "steps n runs"]:
        return stream.normal(Purpose.NOISE, len(self.free_coordinates))

    def step(self, state, variates, now: StepTime):
        which = jnp.argmin(jnp.abs(self.sizes - now.size))  # sizes may differ from those of the list by rounding
        return jnp.asarray(self.decay_factors)[which] @ state + jnp.asarray(self.noise_factors)[which] @ variates

    def statistics(self, state: Float[Array, "n runs"]) -> PyTree:
        centre = self.problem.vector(self.point)
        place = lambda x: self.problem.from_vector(centre.at[np.asarray(self.free_coordinates)].add(x), self.point)
        return jax.vmap(place)(move_runs_first(state))
