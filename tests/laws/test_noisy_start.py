"""The law of exit times at any width: a random start with SGD's noise near the saddle, then the ODE."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.papers.mediocrity import noisy_start, theory as mediocrity


def test_law_of_one_unit_is_that_of_the_backward_equation():
    """Two routes: quantiles at d = 10^12 differ by less than 0.06 in t, where the spread is 6."""
    problem, shares = sl.presets.phase_retrieval(lr=1 / 12, noise=0.3), [0.05, 0.25, 0.5, 0.75, 0.95]
    exact, law = mediocrity.exit_law(problem, 10**12, 0.1), noisy_start.exit_law(problem, 10**12, 0.1)
    assert np.abs(law.quantile(shares) - exact.quantile(shares)).max() < 0.06
    assert abs(law.mean - exact.mean) < 0.02
    assert abs(law.variance / exact.variance - 1) < 0.01


CASES = {
    "two units": (sl.presets.phase_retrieval(2, lr=0.2), 1000, 0.1),
    "off the sphere": (sl.presets.phase_retrieval(2, lr=0.05, sphere=False), 1000, 0.4),
    "second layer": (sl.presets.phase_retrieval(2, lr=0.05, sphere=False, train_second=True), 1000, 0.4),
    "two teachers": (sl.presets.quadratic_network(2, 2, lr=0.02), 1000, 0.6),
}


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_law_is_that_of_the_chain(case, say):
    """Shares of 1000 runs that exit by the law's quartiles: within 5 standard errors (0.016) and 0.03, of order 1/sqrt(d)."""
    problem, d, threshold = CASES[case]
    law, shares = mediocrity.exit_law(problem, d, threshold), np.array([0.25, 0.5, 0.75])
    t = law.quantile(shares)
    runs = sl.simulate(
        problem, sl.Chain(d), sl.RandomInit(d), t_max=t[-1], runs=1000, seed=1, until=sl.exits(threshold), progress=False
    )
    exits = sl.exit_times(runs, threshold)
    found = np.array([(~exits.censored & (exits.t <= each)).mean() for each in t])
    say(f"{case}: by the quartiles {np.round(found, 3)} of the runs, t = {np.round(t, 2)}")
    assert np.abs(found - shares).max() < 0.03 + 5 * 0.016
    if case == "off the sphere":
        assert mediocrity.exit_time(problem, d, threshold, "noisy_ode") == law.mean


def test_no_law_without_a_saddle():
    with pytest.raises(sl.BadInput, match="zero overlap is not a saddle"):
        mediocrity.exit_law(sl.presets.committee(2, 1, "erf"), 1000, 0.1)
    with pytest.raises(sl.BadInput, match="the plateau at zero overlap is stable"):
        mediocrity.exit_law(sl.presets.phase_retrieval(2, lr=3.0), 1000, 0.1)
