"""Which limit holds as width and learning rate scale with d, and how near SGD is to its ODE."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.papers.slides import theory as regimes

# --- the theorem: SGD and its ODE differ by sqrt(lr / (d p)) -----------------------------------------------------------------


class Gap(NamedTuple):
    """Mean over runs of the largest distance of an entry of M and Q from the ODE, and of the mean distance of entries."""

    largest: float
    typical: float


def start_of(width):
    """A start without symmetries."""
    M = 0.3 * np.cos(1 + np.arange(width)[:, None] + 2 * np.arange(2))
    return sl.Overlaps(np.ones(width), M, M @ M.T + np.diag(1 - (M**2).sum(1)))


def chain_and_limit(width, d, lr, t, runs):
    """M and the upper triangle of Q at t, of each run of the chain, which has the law of SGD, and of the ODE."""
    problem, start = sl.presets.committee(width, 2, lr=lr, noise=0.1), start_of(width)
    row, column = np.triu_indices(width)
    for level, count in ((sl.Chain(d), runs), (sl.ODE(), 1)):
        found = sl.simulate(problem, level, start, t_max=t, runs=count, save=[t], progress=False)
        M, Q = found.M.values.reshape(count, -1), found.Q.values[:, 0, row, column]
        yield np.concatenate([M, Q], axis=1)


def gap(width, d, lr, runs=192):
    """The distance at the paper's time 1 from one start."""
    chain, limit = chain_and_limit(width, d, lr, t=width / lr, runs=runs)
    off = np.abs(chain - limit)
    return Gap(float(off.max(1).mean()), float(off.mean()))


def exponent(x, y):
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


@pytest.mark.full
def test_gap_to_ode_falls_with_the_root_of_the_learning_rate():
    """The bound's exponent 1/2 within 0.05, which is three standard errors."""
    rates = [0.1, 0.4, 1.6]
    found = exponent(rates, [gap(4, 512, lr).largest for lr in rates])
    print(f"gap ~ lr^{found:.3f}")
    assert abs(found - 0.5) < 0.05


@pytest.mark.full  # tests/laws/test_limits.py has this law for squared units
def test_gap_to_ode_falls_with_the_root_of_the_dimension():
    """The bound's exponent -1/2 within 0.05, which is three standard errors."""
    sizes = [512, 2048, 8192]
    found = exponent(sizes, [gap(4, d, 0.8).largest for d in sizes])
    print(f"gap ~ d^{found:.3f}")
    assert abs(found + 0.5) < 0.05


@pytest.mark.full
def test_gap_to_ode_falls_with_the_root_of_the_width_entry_by_entry():
    """The largest of n entries is larger by about the root of 2 log n, and n grows as p^2: the bound needs that factor."""
    widths = np.array([1, 4, 8])
    gaps = [gap(int(p), 512, 0.8) for p in widths]
    largest, typical = np.array(gaps).T
    entries = widths * (widths + 1) / 2 + 2 * widths
    plain, each, both = (exponent(widths, y) for y in (largest, typical, largest / np.sqrt(np.log(entries))))
    print(f"largest entry ~ p^{plain:.3f}, typical entry ~ p^{each:.3f}, largest over the root of the logarithm ~ p^{both:.3f}")
    assert each < -0.45
    assert both < -0.45
    assert -0.45 < plain < -0.15


# --- the regimes -------------------------------------------------------------------------------------------------------------


def after_noise(d, delta, time=8.0):
    """What four units at lr = p d^-delta do until (lr/p)^2 t = time, the noise's own clock.

    The largest entry of M - M(0) and of Q - Q(0) in the ODE, how far the chain's mean of Q is from it, and the spread of Q.
    """
    start, per_unit = start_of(4), d**-delta
    chain, limit = chain_and_limit(4, d, 4 * per_unit, t=time / per_unit**2, runs=192)
    begin = np.concatenate([np.ravel(start.M), np.asarray(start.Q)[np.triu_indices(4)]])
    moved, n = np.abs(limit[0] - begin), start.M.size
    return moved[:n].max(), moved[n:].max(), np.abs(chain.mean(0) - limit[0])[n:].max(), chain.std(0)[n:].max()


def test_where_noise_dominates_norms_follow_the_ode_and_nothing_is_learnt():
    """delta = -1/4: M moves as d^-1/4 and Q by order 1; runs differ by d^-1/4 as the bound says (within 0.05)."""
    sizes = np.array([10**4, 10**6])
    learnt, grown, error, spread = np.array([after_noise(int(d), -0.25) for d in sizes]).T
    print("M moved", learnt.round(4), "Q moved", grown.round(4), "spread", spread.round(4))
    assert (grown > 0.9).all()
    assert abs(exponent(sizes, learnt) + 0.25) < 0.02
    assert abs(exponent(sizes, spread) + 0.25) < 0.05
    assert (error < 4.5 * spread / np.sqrt(192)).all()


def test_without_a_limit_runs_differ_at_every_dimension():
    """delta = -1/2: about eight steps of order 1 whatever d, and a spread that is the same over four decades."""
    spread = np.array([after_noise(d, -0.5)[3] for d in (10**4, 10**8)])
    print("spread", spread.round(3))
    assert (spread > 0.3).all()
    np.testing.assert_allclose(spread[0], spread[1], rtol=0.1)


def test_noise_correlates_students_unless_the_width_outgrows_the_learning_rate():
    """Q - M M^T off its diagonal, zero at the start, at the paper's time 1: of order 1/p at a constant rate, not at lr = p."""

    def correlation(width, lr):
        problem = sl.presets.committee(width, 2, lr=lr, noise=1.0)
        end = sl.simulate(problem, sl.ODE(), start_of(width), t_max=width / lr, save=[width / lr], progress=False)
        M, Q = end.M.values[0, 0], end.Q.values[0, 0]
        return np.abs((Q - M @ M.T)[~np.eye(width, dtype=bool)]).mean()

    constant, growing = (correlation(8, lr(8)) / correlation(4, lr(4)) for lr in (lambda p: 0.4, lambda p: p))
    print(f"twice the width: correlations {constant:.2f} times as large at constant lr, {growing:.2f} times at lr = p")
    assert constant < 0.6
    assert growing > 1


@pytest.mark.full
def test_computed_phase_diagram_is_the_one_by_formula():
    """Everywhere but nearer to a line than the exponents of widths up to 12 are to their limits."""
    kappas, deltas = np.linspace(0, 1, 5), np.linspace(-1.75, 0.75, 21)
    found = regimes.phase_diagram(kappas, deltas, widths=(4, 12))
    total = found.kappa + found.delta
    near = np.minimum(abs(total), abs(total + 0.5))
    formula = np.array([[regimes.regime(kappa, delta).name for delta in deltas] for kappa in kappas])
    wrong = near.values[found.regime.values != formula]
    print(f"{wrong.size} of {formula.size} points differ, at most {max(wrong, default=0):.3f} from a line")
    assert (wrong < 0.13).all()
    assert set(found.regime.values.ravel()) == set(regimes.REGIMES)
    assert (found.regime.values == formula)[near == 0].all()
    assert abs(found.population).max() < 0.05
    assert abs(found.corrector + total).max() < 0.05


@pytest.mark.parametrize(
    ("kappa", "delta", "name"),
    [
        (0, 0.1, "gradient flow"),
        (1, 0, "gradient flow"),
        (0.3, -0.3, "high-dimensional"),
        (0.1 + 0.2, -0.3, "high-dimensional"),
        (0, -0.49, "noise-dominated"),
        (0.3, -0.8, "no limit"),
        (0, -2, "no limit"),
    ],
)
def test_regimes_have_the_lines_of_the_theorem(kappa, delta, name):
    found = regimes.regime(kappa, delta)
    assert found.name == name
    assert found.mean_field == (kappa > 0 and name == "gradient flow")
    assert (found.level is None) == (name == "no limit") == (found.fluctuation > -1e-9)
    assert str(found).startswith(name)


def test_sizes_of_a_problem_have_the_exponents_of_its_regime():
    """Constant width and lr = d^-1/2: over two decades each size has its exponent, and the measured ratio that of lr/p."""
    sizes = [regimes.term_sizes(sl.presets.phase_retrieval(width=4, lr=d**-0.5, noise=0.5), d) for d in (10**4, 10**6)]
    expected = regimes.regime(0, 0.5)
    powers = {name: np.log(getattr(sizes[1], name) / getattr(sizes[0], name)) / np.log(100) for name in sizes[0]._fields}
    for name in ("corrector", "step", "fluctuation", "samples"):
        np.testing.assert_allclose(powers[name], getattr(expected, name), rtol=1e-9)
    np.testing.assert_allclose(powers["ratio"], expected.corrector, atol=0.02)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: regimes.regime(-0.1, 0), "kappa"),
        (lambda: regimes.regime(0, float("nan")), "delta"),
        (lambda: regimes.phase_diagram([0], []), "deltas"),
        (lambda: regimes.phase_diagram([-1], [0]), "kappas"),
        (lambda: regimes.phase_diagram([0], [0], widths=(4, 2)), "widths"),
        (lambda: regimes.term_sizes("committee", 100), "problem"),
    ],
)
def test_wrong_exponents_get_a_sentence(call, part):
    with pytest.raises(sl.BadInput, match=part):
        call()
