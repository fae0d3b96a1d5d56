"""Rare exits of the diffusion over a barrier come at the mean time of the backward equation."""

from __future__ import annotations

import jax
import numpy as np
from scipy.integrate import cumulative_trapezoid

import sgdlimits as sl

D, LEVEL, RUNS = 30, 0.8, 512


def overlap(m):
    return sl.Overlaps(np.ones(1), m * np.ones((1, 1)), np.ones((1, 1)))


def mean_exit_time(problem, start):
    r""":math:`T'' \Sigma/2d + b T' = -1`, T = 0 at LEVEL, by two integrals; nothing crosses m = 1, where no noise is."""
    m = np.linspace(LEVEL, 1 - 1e-9, 20001)
    drift = np.asarray(jax.vmap(lambda m: problem.drift(overlap(m)).M[0, 0])(m))
    variance = np.asarray(jax.vmap(lambda m: problem.covariance(overlap(m))[0, 0])(m)) / D
    potential = cumulative_trapezoid(2 * drift / variance, m, initial=0)
    density = 2 / variance * np.exp(potential)
    beyond = -cumulative_trapezoid(density[::-1], m[::-1], initial=0)[::-1]
    return np.interp(start, m, cumulative_trapezoid(np.exp(-potential) * beyond, m, initial=0))


def test_the_diffusion_leaves_a_well_at_the_mean_time_of_the_backward_equation():
    """Within four standard errors at a short step, and 10 %: a path is looked at after each step only, and so leaves late."""
    problem, start = sl.presets.phase_retrieval(1, lr=0.1, noise=1.0), 0.9
    exact = mean_exit_time(problem, start)
    left = lambda level: sl.simulate(
        problem, level, overlap(start), t_max=100 * exact, runs=RUNS, save=2, until=_below, progress=False
    )
    gaussian = left(sl.SDE(D, dt=0.01))
    assert (gaussian.status == "stopped").all()
    times = gaussian.t_end.values
    assert abs(times.mean() - exact) < 4 * times.std() / np.sqrt(RUNS) + 0.1 * exact
    assert left(sl.SDE(D, dt=0.03, samples=4)).t_end.values.mean() > 1.4 * exact  # where the noise is of few samples


def _below(stats):
    return stats.M[0, 0] < LEVEL
