r"""Learning rate at which a quadratic network leaves its plateau with the fewest samples [3]_.

From orthonormal students the ODE keeps Q and :math:`MM^\top` diagonal in one basis, the left singular vectors of the initial
M. With :math:`q_i` and :math:`m_i` for the :math:`k = \min(p, p^*)` pairs of directions, z for the norm that the
other p - k directions share, :math:`\tau = (\sum_i q_i + (p-k) z)/p - 1` and the risk R,

.. math::
    \dot m_i &= -\frac{4\eta}{p}\, m_i\, \Big(\tau + \frac{2 q_i}{p} - \frac{2}{p^*}\Big), \qquad
    e_i = \frac{q_i^2}{p} - \frac{m_i^2}{p^*}, \\
    \dot q_i &= -\frac{8\eta}{p}\,(\tau q_i + 2 e_i) + \frac{16\eta^2}{p^2}
    \Big(R q_i + 4\tau e_i + 8\Big[\frac{q_i^3}{p^2} - \frac{2 q_i m_i^2}{pp^*} + \frac{m_i^2}{p^{*2}}\Big]\Big),

and the same for z with zero overlap. The state has 2k + 1 entries for each start and rate, whatever p: all starts and rates of
a search form one array, and are solved as one system.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sgdlimits.analysis.first_passage import passage_times
from sgdlimits.domain import Fraction, NotNegative, NotNegativeInTime, Positive, Seed, Size, Teachers, Width, checked
from sgdlimits.errors import BadInput
from sgdlimits.papers.quadratic.theory.plateau import largest_lr
from sgdlimits.problem.presets import quadratic_network
from sgdlimits.start import OrthogonalInit

RELATIVE_TOLERANCE = 1e-8
"""Relative tolerance of the ODE solver for halving times."""
MAX_GROWTH_TIMES = 5.0
"""Time after which a run counts as never halving its risk, in growth times of overlaps at small learning rates."""
SEARCH_POINTS = (13, 5, 5)
"""Numbers of learning rates on successively finer grids; a parabola through the last three rates gives the optimum."""


class _RunBatch(NamedTuple):
    """Parameters and drift of a batch of ODE runs, whose state is (q_1..q_k, z, m_1..m_k) along the last axis."""

    p: int
    teachers: int
    k: int
    noise: float
    lr: np.ndarray

    def slope(self, state: np.ndarray) -> np.ndarray:
        """Return the drift of each run's state, per unit of the norms' relaxation time p/(8 lr).

        Here p is the width and lr the learning rate.
        """
        p, k = self.p, self.k
        q, m = state[..., : k + 1], state[..., k + 1 :]
        square = np.zeros_like(q)
        square[..., :k] = m**2
        # trace of the difference D of student and teacher matrices
        tau = self._trace(q)[..., None] / p - 1
        e = q**2 / p - square / self.teachers
        third = q**3 / p**2 - 2 * q * square / (p * self.teachers) + square / self.teachers**2
        push = self.risk(state)[..., None] * q + 4 * tau * e + 8 * third
        dq = -(tau * q + 2 * e) + 2 * self.lr[..., None] / p * push
        dm = -m * (tau + 2 * q[..., :k] / p - 2 / self.teachers) / 2
        return np.concatenate([dq, dm], axis=-1)

    def risk(self, state: np.ndarray) -> np.ndarray:
        """Return the population risk of each run's state."""
        q, m = state[..., : self.k + 1], state[..., self.k + 1 :]
        cross = self._trace(q**2) / self.p**2 - 2 * (m**2).sum(-1) / (self.p * self.teachers) + 1 / self.teachers
        return (self._trace(q) / self.p - 1) ** 2 + 2 * cross + self.noise

    def _trace(self, q: np.ndarray) -> np.ndarray:
        """Return the trace of a p by p diagonal matrix, given its first k entries and the entry that all others share."""
        return q[..., : self.k].sum(-1) + (self.p - self.k) * q[..., self.k]


@checked
def halving_time(
    width: Width,
    teachers: Teachers,
    lr: Positive | ArrayLike,
    *,
    spread: Positive = 0.01,
    noise: NotNegativeInTime = 0.0,
    threshold: Fraction = 0.5,
    starts: Size = 20,
    seed: Seed = 0,
) -> np.ndarray:
    r"""Time until the ODE has lost a fraction of its excess risk, half by default, in samples per dimension.

    It is :math:`\alpha_c` of figure 2.

    The result has the shape of `lr` followed by `starts`. It is infinite if the run diverges, or needs more than five times
    the time in which, at small rates, overlaps grow by :math:`e^2/\text{spread}`.

    Parameters
    ----------
    width, teachers : p and :math:`p^*`
    lr : learning rates, any shape
    spread : standard deviation of the overlaps at the start, `OrthogonalInit(spread)`
    noise : variance of the label noise
    threshold : fraction of the excess risk that is lost; 0.5 halves it
    starts, seed : number of random starts, and their seed

    >>> print(halving_time(3, 3, [0.1, 0.3, 0.6], starts=4).mean(-1).round(1))
    [57.2 32.8  inf]
    """
    lr = np.asarray(lr, float)
    M = OrthogonalInit(float(spread)).sample(quadratic_network(width, teachers), runs=starts, seed=seed).M
    # rotations of students and teachers make M diagonal, and it stays so
    m = np.linalg.svd(np.asarray(M), compute_uv=False)
    lrs = np.repeat(lr.ravel(), len(m))
    runs = _RunBatch(width, teachers, m.shape[1], float(noise), lrs)
    # every pair of rate and start is one run
    state = np.concatenate([np.ones((lrs.size, runs.k + 1)), np.tile(m, (lr.size, 1))], axis=1)
    # in the units of `slope`, where overlaps grow at the rate 1/teachers
    longest = MAX_GROWTH_TIMES * teachers * (2 + abs(np.log(spread)))
    level = runs.noise + (1 - threshold) * (runs.risk(state) - runs.noise)
    times = passage_times(runs.slope, runs.risk, state, level, longest, RELATIVE_TOLERANCE)
    return (times * width / (8 * lrs)).reshape(*lr.shape, len(m))


@checked
def optimal_lr(
    width: Width,
    teachers: Teachers,
    *,
    spread: NotNegative = 0.01,
    noise: NotNegativeInTime = 0.0,
    threshold: Fraction = 0.5,
    starts: Size = 20,
    seed: Seed = 0,
    learns: bool = False,
) -> float:
    r"""Learning rate that halves the excess risk with the fewest samples, on average over random starts.

    The mean of `halving_time` is minimised on successively finer grids below the largest rate at which the plateau is left;
    rates at which a run diverges are excluded.

    The paper finds that the best rate is proportional to p. On the plateau this holds up to (p+4)/(p+2), see
    `fastest_escape_lr`.

    Parameters
    ----------
    width, teachers, spread, noise, threshold, starts, seed : as in `halving_time`
    learns : whether to search only rates at which zero risk is stable, below `largest_lr(...).solution`; wide students may
        leave the plateau fastest above that rate, and then do not reach zero risk

    >>> round(optimal_lr(3, 3, starts=4), 2)
    0.27
    """
    largest = largest_lr(width, teachers, noise)
    top = min(largest.escape, largest.solution) if learns else largest.escape
    if top <= 0:
        raise BadInput(
            f"{width} students cannot learn {teachers} teachers completely. "
            f"Leave out learns=, or use at least {teachers} students."
        )
    how: dict = dict(spread=spread, noise=noise, threshold=threshold, starts=starts, seed=seed)
    low, high = 0.0, top
    for count in SEARCH_POINTS:
        lrs = np.linspace(low, high, count + 2)
        times = np.full(lrs.size, np.inf)
        times[1:-1] = halving_time(width, teachers, lrs[1:-1], **how).mean(-1)
        best = int(times.argmin())
        if not np.isfinite(times[best]):
            raise BadInput(f"no run from spread = {spread:g} reaches the threshold {threshold:g}. Use a smaller threshold.")
        low, high = lrs[best - 1], lrs[best + 1]
    # the vertex of the parabola through the best rate and its neighbours
    middle, step = lrs[best], lrs[1] - lrs[0]
    left, here, right = times[best - 1 : best + 2]
    bend = left - 2 * here + right
    return float(middle + step * (left - right) / (2 * bend) if np.isfinite(bend) and bend > 0 else middle)
