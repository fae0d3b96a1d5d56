"""Phases that are found in trajectories have the rates and levels of theory."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.papers.quadratic.phases import PHASES, phases
from sgdlimits.papers.quadratic.theory.plateau import largest_lr
from sgdlimits.papers.quadratic.theory.terminal import terminal_decay

RUNS = 4


def network(width, teachers, lr, noise=0.0):
    return sl.presets.quadratic_network(width, teachers, lr, noise)


def ode(problem, start, t_max, save=101):
    return sl.simulate(problem, sl.ODE(), start, t_max=t_max, runs=RUNS, save=save, progress=False)


@pytest.mark.parametrize(("width", "teachers", "lrs"), [(2, 2, (0.01, 0.15)), (3, 1, (0.02, 0.15))])
def test_rates_on_the_plateau_and_at_the_end_are_those_of_theory(width, teachers, lrs, say):
    """As many students as teachers also end exponentially, which they do within the time that is simulated."""
    for lr in lrs:
        problem = network(width, teachers, lr)
        found = phases(ode(problem, sl.OrthogonalInit(1e-4), 4.0 * width * teachers / lr))
        assert (found.data.outcome == "left").all()
        gaps = {name: float(np.abs(found.data[name] / found.theory[name] - 1).max()) for name in ("growth", "level")}
        if width == teachers:
            assert (found.data.tail_law == "exponential").all()
            gaps["tail_rate"] = float(np.abs(found.data.tail_rate / found.theory["tail_rate"] - 1).max())
        words = ", ".join(f"{name} within {100 * gap:.2f} %" for name, gap in gaps.items())
        say(f"p = {width}, p* = {teachers}, lr = {lr}: {words}")
        assert max(gaps.values()) < 0.02
        begin, end = found.data.begin.values, found.data.end.values
        assert (begin[:, 1:] == end[:, :-1]).all()
        assert (np.diff(begin, axis=1) > 0).all()


def test_overlaps_between_students_decay_on_the_plateau(say):
    """(11) with a minus: printed is growth."""
    problem, rng = network(3, 1, 0.05), np.random.default_rng(0)
    X = rng.normal(size=(RUNS, 3, 3))
    Q = np.eye(3) + 0.05 * (X + X.swapaxes(1, 2))
    start = sl.Overlaps(np.ones((RUNS, 3)), 1e-7 * rng.normal(size=(RUNS, 3, 1)), Q)
    found = phases(ode(problem, start, 200.0))
    gap = float(np.abs(found.data.decay / found.theory["decay"] - 1).max())
    say(f"overlaps between students decay at {float(found.data.decay.mean()):.4f}, within {100 * gap:.2f} % of theory")
    assert gap < 0.02


@pytest.mark.full
def test_noise_at_large_d_leaves_the_rates(say):
    """Each run of the SDE at d = 10^8 has the rate within 2 %, and the chain at d = 2000 in the mean, within its error."""
    problem = network(2, 2, 0.1)
    sde = phases(sl.simulate(problem, sl.SDE(10**8), sl.OrthogonalInit(1e-3), t_max=60, runs=RUNS, save=121, progress=False))
    gap = float(np.abs(sde.data.growth / sde.theory["growth"] - 1).max())
    assert np.isnan(sde.data.decay).all()
    chain = phases(sl.simulate(problem, sl.Chain(2000), sl.OrthogonalInit(0.01), t_max=60, runs=16, save=241, progress=False))
    assert (chain.data.outcome == "left").all()
    rates = chain.data.growth.values
    error = rates.std(ddof=1) / np.sqrt(rates.size)
    say(f"growth: SDE within {100 * gap:.2f} %, chain {rates.mean():.4f} ± {error:.4f}, theory {sde.theory['growth']:.4f}")
    assert gap < 0.02
    # False alarm 1e-4 with 15 degrees of freedom.
    assert abs(rates.mean() - sde.theory["growth"]) < 5.2 * error
    assert abs(np.median(chain.data.level) / chain.theory["level"] - 1) < 0.02


@pytest.mark.full
def test_more_students_than_teachers_end_algebraically(say):
    """Risk times t squared tends to the constant of the end of learning, at small and at finite learning rates."""
    for lr in (0.01, 0.15):
        problem = network(3, 1, lr)
        times = np.concatenate([np.linspace(0, 25, 26), np.geomspace(26, 10**4, 40)]) / lr
        runs = ode(problem, sl.OrthogonalInit(0.05), times[-1], times)
        ends = ((runs.risk * runs.t**2)[:, -1] / terminal_decay(problem).constant).values
        found = phases(runs)
        exponents = found.data.tail_exponent.values
        small = terminal_decay(problem).constant / terminal_decay(problem, corrector=False).constant
        say(
            f"lr = {lr}: risk t^2 over its constant, {small:.3f} times that of small rates: {ends.round(4).tolist()}; "
            f"exponents {exponents.round(3).tolist()}"
        )
        # The next order is 1/t: the clock of the decay starts at the escape, a few units of 1/lr, of 10^4 here.
        assert np.abs(ends - 1).max() < 2e-3
        assert np.abs(exponents - 2).max() < 0.02
        assert (found.data.tail_law == "algebraic").all()


def test_runs_without_a_plateau_and_runs_that_stay_are_told_apart():
    """From large overlaps there is none; above the largest rate of escape overlaps decay and the run stays."""
    runs = ode(network(2, 2, 0.1), sl.FixedInit([[0.7, 0.2], [-0.1, 0.6]]), 60.0)
    none = phases(runs)
    assert (none.data.outcome == "none").all()
    assert np.isnan(none.data.begin).all()
    assert (none.data.tail_law == "exponential").all()
    largest = largest_lr(2, 2, 1.0)
    stays = phases(ode(network(2, 2, (largest.escape + largest.plateau) / 2, 1.0), sl.OrthogonalInit(1e-3), 60.0))
    assert (stays.data.outcome == "stays").all()
    assert (stays.data.growth < 0).all()
    assert np.isnan(stays.data.end.sel(phase="plateau")).all()
    diverged = phases(runs.assign_coords(status=("run", ["diverged"] * RUNS)))
    assert (diverged.data.outcome == "diverged").all()
    for found, words in ((none, "4 had none"), (stays, "4 stayed on one"), (diverged, "4 diverged")):
        assert words in repr(found)
    with pytest.raises(sl.BadInput, match="band"):
        phases(runs, band=2.0)


def test_what_distinguishes_students_is_followed_where_overlaps_do_not_grow():
    """Students that are alike but for a difference that grows at a known rate, with fluctuations of 1 %, above a floor."""
    runs = ode(network(2, 2, 0.1), sl.FixedInit(0.1), 60.0)
    t, rng = runs.t.values, np.random.default_rng(3)
    grown = 1e-6 * np.exp(0.3 * t)
    M = np.full((RUNS, t.size, 2, 2), 0.5)
    M[..., 0, 0] += grown / (1 + grown)
    risk = 1 + 0.3 / (1 + grown**2) * (1 + 0.01 * rng.normal(size=(RUNS, t.size))) + 2 * np.exp(-t)
    made = runs.assign(
        M=(runs.M.dims, M), Q=(runs.Q.dims, np.tile(np.eye(2), (RUNS, t.size, 1, 1))), risk=(runs.risk.dims, risk)
    )
    found = phases(made, floor=1.0)
    assert found.data.attrs["signal"] == "differences"
    np.testing.assert_allclose(found.data.growth, 0.3, rtol=0.01)  # the difference slows down as it gets to order one
    np.testing.assert_allclose(found.data.level, 1.3, rtol=2e-3)
    np.testing.assert_allclose(found.data.end.sel(phase="escape"), np.log(1e6) / 0.3, rtol=0.01)
    assert tuple(found.data.phase.values) == PHASES
    assert (phases(made).data.outcome == "none").all()  # above the problem's floor of 0 the risk does not fall by half
