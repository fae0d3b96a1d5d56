"""SGD on a fixed number of samples, again and again: beside plain NumPy, and beside least squares."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl

ROOM = 5.0
"""Standard errors: false alarms below 1e-6."""


def test_samples_are_those_of_one_pass_until_they_come_again():
    problem = sl.presets.phase_retrieval(algorithm=sl.OnePassSGD(0.1, sphere=True, batch=2))
    how = dict(t_max=4, runs=3, save=[1.0, 2.0, 3.0, 4.0], progress=False)
    once, again = (sl.simulate(problem, level, sl.FixedInit(0.3), **how) for level in (sl.SGD(20), sl.SGD(20, reuse=40)))
    same = np.abs(once.M - again.M).max(("run", "student", "teacher")).values
    assert (same[:2] == 0).all()
    assert (same[2:] > 0).all()
    longer = sl.simulate(problem, sl.SGD(20, reuse=40), sl.FixedInit(0.3), resume=again, **how | dict(t_max=5, save=[5.0]))
    whole = sl.simulate(problem, sl.SGD(20, reuse=40), sl.FixedInit(0.3), **how | dict(t_max=5, save=[5.0]))
    np.testing.assert_array_equal(longer.M[:, -1], whole.M[:, -1])


@pytest.mark.full
def test_several_passes_have_the_law_of_a_loop_over_an_array(same_law):
    """Tanh units in R^12, 8 samples, 5 passes."""
    d, n, passes, runs, lr = 12, 8, 5, 4000, 2.0
    problem = sl.ProjectionProblem(
        sl.Target(sl.CommitteeReadout("tanh"), 1, noise=0.09), sl.TwoLayer(1, "tanh"), sl.SquaredLoss(), sl.OnePassSGD(lr)
    )
    ours = sl.simulate(
        problem, sl.SGD(d, reuse=n), sl.FixedInit(0.3), t_max=passes * n / d, runs=runs, save=2, seed=1, progress=False
    ).isel(t=-1)
    rng = np.random.default_rng(2)
    X, u = rng.standard_normal((n, runs, d)), np.zeros((runs, d))
    u[:, 0], u[:, 1] = 0.3, np.sqrt(1 - 0.09)
    labels = np.tanh(X[:, :, 0]) + 0.3 * rng.standard_normal((n, runs))
    for x, y in [*zip(X, labels, strict=True)] * passes:
        f = np.tanh((u * x).sum(1))
        u -= lr / d * ((f - y) * (1 - f**2))[:, None] * x
    same_law({"M": ours.M.values.ravel(), "Q": ours.Q.values.ravel()}, {"M": u[:, 0], "Q": (u**2).sum(1)})


def test_gradient_descent_on_the_empirical_risk_ends_at_the_smallest_interpolation(say):
    r"""A linear unit from zero: E M = n/d, and E Q = n/d + noise n/(d - n - 1), the mean trace of an inverse Wishart matrix."""
    d, n, noise, runs = 40, 16, 0.25, 128
    linear = sl.ProjectionProblem(
        sl.Target(sl.CommitteeReadout("he1"), 1, noise=noise),
        sl.TwoLayer(1, "he1"),
        sl.SquaredLoss(),
        sl.OnePassSGD(0.2 * d, batch=n),
    )
    start = sl.Overlaps([1.0], [[0.0]], [[0.0]])
    end = sl.simulate(linear, sl.SGD(d, reuse=n), start, t_max=400 * n / d, runs=runs, save=2, progress=False).isel(t=-1)
    for name, expected in (("M", n / d), ("Q", n / d + noise * n / (d - n - 1))):
        values = end[name].values.ravel()
        error = values.std(ddof=1) / np.sqrt(runs)
        say(f"{name}: {values.mean():.4f} ± {error:.4f}, in theory {expected:.4f}")
        assert abs(values.mean() - expected) < ROOM * error


def test_what_cannot_be_reused_is_said():
    private = sl.presets.phase_retrieval(algorithm=sl.Private(sl.OnePassSGD(0.1), norm=1.0, noise=0.1))
    with pytest.raises(sl.BadInput, match="Private adds noise of its own, which reuse= cannot repeat"):
        sl.simulate(private, sl.SGD(20, reuse=40), sl.FixedInit(0.3), t_max=1, progress=False)
    with pytest.raises(sl.BadInput, match="reuse= does not support SpikedTensor"):
        sl.simulate(sl.presets.spiked_tensor(2, 2.0), sl.SGD(20, reuse=40), sl.RandomInit(20), t_max=1, progress=False)
    with pytest.raises(sl.BadInput, match="reuse must be an integer"):
        sl.simulate(sl.presets.phase_retrieval(), sl.SGD(20, reuse=0), sl.FixedInit(0.3), t_max=1, progress=False)
