"""Fixed points found by search alone are those that are known: points, rings and their higher relatives, with their stability.

Shares of random starts are compared by exact binomial intervals; each comparison fails by chance with 1e-4. What is measured is
printed.
"""

from __future__ import annotations

import itertools
import math

import jax
import numpy as np
import pytest
from scipy.stats import binomtest

import sgdlimits as sl
from sgdlimits.analysis.fixed_points import SearchInterrupted, fixed_points
from sgdlimits.analysis.fixed_points.components import RootGraph, are_connected
from sgdlimits.analysis.fixed_points.find import draw_starts
from sgdlimits.analysis.fixed_points.roots import refine_roots
from sgdlimits.analysis.fixed_points.stability import stability_of
from sgdlimits.analysis.fixed_points.system import DriftSystem, SearchMonitor
from sgdlimits.papers.effective.theory import ring_radius

FALSE_ALARM = 1e-4
INFINITE = math.inf


def agrees(share, probability, runs):
    """Whether a share of runs may have this probability."""
    return binomtest(round(share.value * runs), runs, probability).pvalue > FALSE_ALARM


def test_phase_retrieval_has_a_saddle_between_two_stable_points(say):
    lr = 0.1
    problem = sl.presets.phase_retrieval(lr=lr)
    table = fixed_points(problem, count=32)
    say(table)
    learnt, plateau = table
    assert (learnt.stability, learnt.copies, learnt.dimension) == ("stable", 2, 0)
    assert (plateau.stability, plateau.copies, plateau.dimension) == ("unstable", 1, 0)
    np.testing.assert_allclose(learnt.point.M, 1, atol=1e-9)
    np.testing.assert_allclose(plateau.point.M, 0, atol=1e-9)
    np.testing.assert_allclose(np.ravel(learnt.images.M), [-1, 1], atol=1e-9)
    assert plateau.images.M.shape == (1, 1, 1)
    np.testing.assert_allclose(plateau.eigenvalues, float(problem.rate) * 4 * (1 - 6 * lr), rtol=1e-9)
    assert max(each.residual for each in table) < 1e-12


def quadratic_risk(s, r, p=2, k=2):
    """The risk where s teachers are learnt with weight beta + p/k and r orthogonal directions with beta (one, or a mixture)."""
    beta = p * (k - s) / (k * (s + r + 2))
    errors = np.array([beta / p] * (s + r) + [-1 / k] * (k - s))
    return errors.sum() ** 2 + 2 * (errors**2).sum()


@pytest.mark.full
def test_quadratic_network_has_all_families_of_critical_points_and_no_others(say):
    """Gradient flow of two units on two teachers rests where W^T W has s teacher directions and r others, s + r <= 2."""
    table = fixed_points(sl.presets.quadratic_network(width=2, teachers=2, lr=0.1), count=96, corrector=False)
    say(table)
    known = sorted(quadratic_risk(s, r) for s, r in itertools.product(range(3), repeat=2) if s + r <= 2)
    np.testing.assert_allclose(sorted(each.risk for each in table), known, atol=1e-9)
    assert [each.stability for each in table] == ["neutral"] + 5 * ["unstable"]
    learnt = table[0]
    assert (learnt.copies, learnt.dimension) == (2, 1), "M is any orthogonal matrix, of determinant 1 or -1"
    np.testing.assert_allclose(learnt.point.M.T @ learnt.point.M, np.eye(2), atol=1e-7)


def test_points_on_a_ring_of_parallel_units_are_connected():
    """At a finite snr the drift has a kink there, and midpoints of statistics are off the ring."""
    one = sl.presets.binary_mixture(snr=5.0, ridge=0.01, width=1)
    end = sl.simulate(one, sl.ODE(), sl.Overlaps([1.5], [[1.6]], [[2.6]]), t_max=3000, save=2, progress=False)
    a, M, Q = (end[name].values[0, -1] for name in "aMQ")
    shares = [np.array([np.cos(angle), np.sin(angle)]) for angle in (0.4, 0.8, 1.2)]
    ring = [sl.Overlaps(a * share, M * share[:, None], Q * np.outer(share, share)) for share in shares]
    problem = sl.presets.binary_mixture(snr=5.0, ridge=0.01)
    system = DriftSystem.from_batch(problem, draw_starts(problem, 16, 0), True, SearchMonitor("", None, False))
    x = refine_roots(system, system.flatten_batch(jax.tree.map(lambda *each: np.stack(each), *ring))).x
    assert are_connected(system, x[:2], x[1:]).all()


@pytest.mark.full
def test_noisy_binary_mixture_has_optima_two_suboptimal_points_and_two_rings(say):
    table = fixed_points(sl.presets.binary_mixture(snr=5.0, ridge=0.01))
    say(table)
    kinds = [("stable", 2, 0), ("stable", 2, 0), ("unstable", 2, 1), ("unstable", 1, 0)]
    assert [(each.stability, each.copies, each.dimension) for each in table] == kinds


@pytest.fixture(scope="module")
def binary():
    return fixed_points(sl.presets.binary_mixture(snr=INFINITE, ridge=0.1), count=64, basins=sl.RandomInit(d=250, scale=0.1))


def test_binary_mixture_has_two_stable_points_and_two_rings(binary, say):
    say(binary)
    stable, ring, origin = binary
    C = math.log(1 - 0.2) - math.log(0.2)
    assert [(each.copies, each.dimension) for each in binary] == [(2, 0), (2, 1), (1, 0)]
    assert [each.stability for each in binary] == ["stable", "unstable", "unstable"]
    np.testing.assert_allclose(stable.point.a, np.array([1, -1]) * math.sqrt(C), atol=1e-8)
    for each in (stable, ring):
        np.testing.assert_allclose(each.point.M[:, 0], each.point.a, atol=1e-8)
    assert abs((ring.point.a**2).sum() - C) < 1e-8
    assert ring.point.a.prod() > 0
    assert abs(ring.eigenvalues[0]) < 1e-9
    np.testing.assert_allclose(origin.point.a, 0, atol=1e-9)
    assert math.sqrt(C) == pytest.approx(ring_radius(0.1, 0.5))


def test_half_of_random_networks_reach_the_optimum_of_the_binary_mixture(binary):
    assert agrees(binary[0].basin, 1 / 2, 400)
    assert agrees(binary[1].basin, 1 / 2, 400)
    assert binary.elsewhere.value == 0


@pytest.mark.full
def test_strong_ridge_leaves_the_origin_only():
    (origin,) = fixed_points(sl.presets.binary_mixture(snr=INFINITE, ridge=0.3), count=64)
    assert (origin.stability, origin.copies) == ("stable", 1)
    np.testing.assert_allclose(origin.point.a, 0, atol=1e-9)


@pytest.mark.full
def test_symmetries_fold_components_but_do_not_change_their_number(binary):
    problem = sl.presets.binary_mixture(snr=INFINITE, ridge=0.1)
    each = fixed_points(problem, symmetries=(), count=64)
    assert (len(each), each.components) == (5, binary.components)
    exchange = lambda stats: sl.Overlaps(stats.a[::-1], stats.M[::-1], stats.Q[::-1, ::-1])
    folded = fixed_points(problem, symmetries=[exchange], count=64)
    assert sorted(orbit.copies for orbit in folded) == [1, 1, 1, 2]
    with pytest.raises(sl.BadInput, match="number 0 does not"):
        fixed_points(problem, symmetries=[lambda stats: sl.Overlaps(-stats.a, stats.M, stats.Q)])


@pytest.mark.full
def test_xor_mixture_has_39_components_of_which_24_are_stable(say):
    """Each of the four clusters is served by units or not: 1 + 4 + 6 + 4 sets of served ones, and 24 ways to serve all.

    The signs of a random start decide on the set. Of the units with a positive second layer each serves one of two clusters by
    the sign of its overlap, and so do the negative ones: 3/32 is the probability that two and two serve different ones.
    """
    problem, runs = sl.presets.xor_mixture(snr=INFINITE, ridge=0.1), 100
    table = fixed_points(problem, count=128, basins=sl.RandomInit(d=250), runs=runs)
    say(table)
    assert table.components == 39
    assert sum(each.copies for each in table.stable) == 24
    assert [each.stability for each in table[1:]] == 5 * ["unstable"]
    assert sorted((each.dimension, each.copies) for each in table) == [(0, 1), (0, 24), (1, 4), (2, 2), (2, 4), (3, 4)]
    for each in table:
        np.testing.assert_allclose(each.point.a**2, (each.point.M**2).sum(1), atol=1e-8)
    np.testing.assert_allclose(table[0].point.a ** 2, math.log(0.6 / 0.4), atol=1e-8)
    known = {(0, 24): 3 / 32, (1, 4): 9 / 16, (2, 2): 7 / 64, (2, 4): 7 / 32, (3, 4): 1 / 64, (0, 1): 0}
    for each in table:
        assert agrees(each.basin, known[each.dimension, each.copies], runs)
    (origin,) = fixed_points(sl.presets.xor_mixture(snr=INFINITE, ridge=0.13), count=32)
    assert origin.stability == "stable"


def three_classes():
    """Two tanh units, three classes on a line, the last one apart: both units learn the same direction."""
    means, weights = [[-1.0], [0.0], [1.0]], [0.3, 0.4, 0.3]
    return sl.presets.gaussian_mixture(means, [0, 0, 1], weights, snr=20.0, ridge=0.1, width=2, activation="tanh")


@pytest.fixture(scope="module")
def coinciding():
    return fixed_points(three_classes(), count=16)


@pytest.mark.full  # the next test judges this point too
def test_a_point_where_units_coincide_is_stable_if_the_flow_returns_to_it(coinciding, random_overlaps, say):
    """Random displacements by about 1/100 into statistics of weights decay to less than a tenth."""
    say(coinciding)
    (both,) = coinciding.stable
    assert [each.stability for each in coinciding[1:]] == ["unstable", "unstable"]
    np.testing.assert_allclose(both.point.Q, both.point.Q[0, 0], atol=1e-7)
    problem = three_classes()
    others = [random_overlaps(problem, seed) for seed in range(3)]
    mixed = lambda name: np.stack([0.99 * getattr(both.point, name) + 0.01 * np.asarray(getattr(o, name)) for o in others])
    start = sl.Overlaps(mixed("a"), mixed("M"), mixed("Q"))
    run = sl.simulate(problem, sl.ODE(), start, t_max=60, runs=3, save=2)
    for name in ("a", "M", "Q"):
        gap = np.abs(run[name].values - getattr(both.point, name)[None, None]).reshape(3, 2, -1).max(2)
        assert (gap[:, 1] < 0.1 * gap[:, 0]).all()


@pytest.mark.full
def test_a_wrong_jacobian_is_not_believed():
    """With false growth in it the attracting point is still stable; the flow from small displacements decides."""
    problem, watch = three_classes(), SearchMonitor("three classes", None, progress=False)
    batch = draw_starts(problem, 8, 0)
    system = DriftSystem.from_batch(problem, batch, True, watch)
    near = sl.Overlaps(np.full((1, 2), 0.876), np.full((1, 2, 1), 0.733), np.full((1, 2, 2), 0.556))
    root = refine_roots(system, system.flatten_batch(near))
    wrong = root._replace(jacobian=root.jacobian + 0.1 * np.eye(system.size))
    assert root.found.all()
    assert wrong.spectra[0][0, 0] > 0
    assert stability_of(system, wrong, 0, system.flatten_batch(batch)) == "stable"


@pytest.mark.full  # searches and saddles: as above for phase retrieval and the binary mixture
def test_specialisation_grows_from_where_two_erf_units_coincide(say):
    table = fixed_points(sl.presets.committee(2, 2, "erf"), count=32)
    say(table)
    gap = lambda point: np.abs(point.Q - point.Q[0, 0]).max() + np.ptp(point.M)
    saddles = [each for each in table if gap(each.point) < 1e-6]
    assert saddles
    assert all(each.stability == "unstable" for each in saddles)
    assert [each.risk < 1e-9 for each in table] == [True] + [False] * (len(table) - 1)
    assert table[0].stability == "stable"


def test_what_was_found_before_the_time_was_over_is_kept_and_labelled(monkeypatch):
    problem = sl.presets.phase_retrieval(lr=0.1)
    cut = fixed_points(problem, count=32, seconds=1e-3)
    assert not cut.complete
    assert "searches" in cut.stopped
    assert "cut off after 0.001 s" in repr(cut)
    with pytest.raises(sl.BadInput, match="seconds must be a finite number above 0"):
        fixed_points(problem, seconds=0)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(RootGraph, "connect", interrupt)
    with pytest.raises(SearchInterrupted) as stopped:
        fixed_points(problem, count=32)
    found = stopped.value.found
    assert {each.stability for each in found} == {"unknown"}
    assert found.components == 3
    assert found.stopped.endswith("before the end of: paths between roots, basins, components, stability")
