"""The level `SecondMoments`: what it refuses, stops, resumes and holds constant."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl

LEVEL = sl.SecondMoments(64)
START = sl.RandomInit(64, scale=1.0)


def problem(**more):
    return sl.presets.least_squares(
        [2.0, 0.5], [0.6, 0.8], **{"noise": 0.1, **({} if "algorithm" in more else {"lr": 0.3}), **more}
    )


def go(made, level=LEVEL, **more):
    return sl.simulate(made, level, START, **{"t_max": 2, "save": 5, "progress": False, **more})


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: sl.presets.committee(1, 1, "erf"), "a student that is not linear"),
        (lambda: sl.presets.committee(2, 1, "linear"), "more than one unit"),
        (lambda: sl.presets.committee(1, 1, "linear", teacher_activation="he2"), "a teacher that is not linear"),
        (lambda: sl.presets.spiked_tensor(3, 1.0), "statistics of its own"),
        (lambda: sl.presets.gaussian_mixture([[1.0], [-1.0]], [0, 1], snr=1.0, width=1, activation="linear"), "the loss"),
        (lambda: problem(algorithm=sl.Clipped(sl.OnePassSGD(0.1), 1.0)), "linear in the gradient"),
        (lambda: problem(algorithm=sl.Adam(0.1)), "linear in the gradient"),
        (lambda: problem(algorithm=sl.Repeated(sl.OnePassSGD(0.1), 2)), "linear in the gradient"),
        (lambda: problem(algorithm=sl.OnePassSGD(0.1, lr_second=0.1)), "linear in the gradient"),
    ],
)
def test_other_problems_are_refused(made, words):
    with pytest.raises(sl.BadInput, match=words):
        go(made())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"eigenvalues": [-1.0, 2.0]}, "0 or larger"),
        ({"eigenvalues": []}, "eigenvalues is empty"),
        ({"coefficients": [1.0, 2.0, 3.0]}, "coefficients must be 2 numbers"),
    ],
)
def test_bad_spectra_are_refused(more, words):
    with pytest.raises(sl.BadInput, match=words):
        sl.presets.least_squares(**{"eigenvalues": [2.0, 0.5], "coefficients": 1.0, **more})


def test_rates_that_change_need_pieces_over_long_times():
    made = sl.presets.least_squares([2.0, 0.5], 1.0, lr=sl.Cosine(0.3, 0.1, 1e3))
    with pytest.raises(sl.BadInput, match="pieces=30"):
        sl.simulate(made, sl.SecondMoments(10**9), sl.RandomInit(10**9), t_max=1e3, progress=False)
    every, held = (go(problem(lr=sl.Cosine(0.3, 0.1, 2.0)), level) for level in (LEVEL, sl.SecondMoments(64, pieces=40)))
    np.testing.assert_allclose(held.risk, every.risk, rtol=1e-3)
    assert not np.array_equal(held.risk, every.risk)


@pytest.mark.parametrize("lr", [0.3, sl.Cosine(0.3, 0.1, 2.0)])
def test_a_run_stops_at_the_first_step_where_its_condition_holds(lr):
    each = go(problem(lr=lr), save=np.arange(129) / 64)
    risk = each.risk.values[0]
    first = int(np.flatnonzero(risk <= 0.6 * risk[0])[0])
    stopped = go(problem(lr=lr), save=2, until=lambda stats: 0.6 * risk[0] - problem().risk(stats))
    assert round(float(stopped.t_end[0]) * 64) == first
    np.testing.assert_allclose(stopped.risk[0, -1], risk[first], rtol=1e-9)


def test_a_longer_simulation_resumes_from_a_shorter_one():
    short = go(problem(), t_max=1, save=3)
    long = go(problem(), save=np.arange(5) / 2, resume=short)
    np.testing.assert_allclose(long.risk, go(problem()).risk, rtol=1e-12)


def test_divergence_is_reported():
    with pytest.warns(sl.DivergedWarning):
        data = go(problem(lr=50.0), t_max=1e4)
    assert data.status.item() == "diverged"
    assert np.isfinite(data.risk).all()


def test_risk_far_below_the_noise_of_rounding():
    """Without noise the risk of one block decays geometrically, here to 1e-95: the factor of a step is known."""
    d, gamma, steps = 10, 0.1, 1000
    made = sl.presets.least_squares([1.0], [1.0], lr=gamma * d)
    data = sl.simulate(made, sl.SecondMoments(d), sl.RandomInit(d), t_max=steps / d, save=2, progress=False)
    factor = 1 - 2 * gamma + gamma**2 * (d + 2)
    np.testing.assert_allclose(data.risk[0, -1], factor**steps / 2, rtol=1e-9)


def test_preset_prints_and_is_replaced():
    made = problem()
    assert repr(made).startswith("least_squares: eigenvalues=Spectrum(")
    assert made.replace(noise=0.3).target.noise == 0.3
