"""The differentiable flow of the drift."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.level import ode

START = sl.Overlaps([1.0], [[0.1]], [[1.0]])


def end(lr):
    return sl.flow(sl.presets.phase_retrieval(lr=lr), START, 5.0).M[0, 0]


@pytest.mark.full
def test_forward_mode_agrees_with_reverse_mode_and_with_differences():
    value, forward = jax.jvp(end, (0.1,), (1.0,))
    assert float(value) == pytest.approx(float(end(0.1)), rel=1e-12)
    assert float(forward) == pytest.approx(float(jax.grad(end)(0.1)), rel=1e-9)
    assert float(forward) == pytest.approx(float(end(0.1 + 1e-5) - end(0.1 - 1e-5)) / 2e-5, rel=1e-5)


@pytest.mark.filterwarnings("ignore::sgdlimits.AccuracyWarning")  # few points, which compile faster
def test_flow_takes_the_tolerance_that_the_expectations_are_worth():
    """Sobol points under a kink: nothing is gained by the tolerance of closed forms."""
    problem = sl.presets.committee(2, 1, "relu").with_expectation(sl.Sobol(5, 2))
    start = sl.FixedInit(0.3).one(problem)
    data = sl.simulate(problem, sl.ODE(), sl.FixedInit(0.3), t_max=3.0, save=[0, 3])
    assert problem.numerics.tolerance > 1e-6
    np.testing.assert_allclose(sl.flow(problem, start, 3.0).M, data.M.values[0, -1], rtol=30 * problem.numerics.tolerance)


@pytest.mark.full
def test_too_many_steps_say_what_to_do(monkeypatch):
    monkeypatch.setattr(ode, "MAX_STEPS", 16)
    with pytest.raises(eqx.EquinoxRuntimeError, match=r"flow needs more than 16 steps.*Give a larger rtol"):
        sl.flow(sl.presets.phase_retrieval(lr=0.1), START, 200.0, rtol=1e-12)
