"""What holds for every activation, with and without batches: the ODE as d grows, and the law of SGD at finite d.

Not tanh, which is the sigmoid but for a shift and scales.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl


def hump(x):
    """A user's own function."""
    return x * jnp.exp(-(x**2) / 4)


FEW = sl.Sobol(3, 2)
"""For levels that follow samples and whose risk nobody looks at: paths do not depend on it."""
CASES = {
    "erf": dict(activation="erf", lr=1.5, batch=3),
    "relu": dict(activation="relu", lr=0.8, train_second=True),
    "sigmoid": dict(activation="sigmoid", lr=3.0, train_second=0.5),
    "linear": dict(activation="linear", lr=0.5, batch=2, sphere=True),
    "he3": dict(activation="he3", lr=0.02, sphere=True),
    "own": dict(activation=hump, teacher_activation="square", lr=1.0, batch=2),
}


@pytest.mark.full  # tests/laws/test_limits.py has this law for squared units
@pytest.mark.parametrize("name", CASES)
def test_chain_tends_to_the_ode(name):
    """sup_t E|chain - ODE| falls as d^(-1/2) between two dimensions."""
    problem = sl.presets.committee(2, 1, noise=0.1, **CASES[name])
    start, dimensions = sl.FixedInit(0.3).one(problem), np.array([1024, 10240])
    times = dict(t_max=1.0, save=5, progress=False)
    limit = sl.simulate(problem, sl.ODE(), start, **times)
    gaps = []
    for d in dimensions:
        chain = sl.simulate(problem.with_expectation(FEW), sl.Chain(int(d)), start, runs=64, **times)
        gaps.append(
            sum(np.abs(chain[name] - limit[name].interp(t=chain.t).isel(run=0)).mean("run") for name in ("M", "Q")).max()
        )
    exponent = np.log(gaps[1] / gaps[0]) / np.log(dimensions[1] / dimensions[0])
    print(f"{name}: E|chain - ODE| falls with exponent {float(exponent):.3f}")
    assert abs(exponent + 0.5) < 0.1


@pytest.mark.full
def test_chain_has_the_law_of_sgd(same_law):
    """Kolmogorov-Smirnov at d = 18. Both levels call the same gradient: one activation here, `own_mixture` has relu."""
    problem, d = sl.presets.committee(2, 1, noise=0.1, **CASES["own"]).with_expectation(FEW), 18
    small = dict(t_max=2.0, runs=1000, save=[1 / 3, 2.0], progress=False)
    both = [sl.simulate(problem, level, sl.RandomInit(d), seed=i, **small) for i, level in enumerate((sl.Chain(d), sl.SGD(d)))]
    same_law(*({name: each[name].values for name in ("a", "M", "Q")} for each in both))
