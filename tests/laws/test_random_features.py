"""Random features by their deterministic equivalent: against explicit random matrices, whose loss curves are exact."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.errors import BadInput
from sgdlimits.papers.scaling import random_features as rf, theory

D, V, STEPS = 100, 400, (1, 10, 100, 1000, 10000)


def mean_risk(features, gamma, steps=STEPS):
    problem = features.problem(gamma)
    return theory.excess_risk(problem, features.d, np.array(steps)) + features.unreachable / 2


def exact_risk(alpha, beta, gamma, matrices, d=D, v=V, steps=STEPS):
    """Risk of SGD on random features, its expectation over samples for each matrix W, in the eigenbasis of W^T H W."""
    rng = np.random.default_rng(1)
    j = np.arange(1.0, v + 1)
    h, b = j ** (-2 * alpha), j**-beta
    eigenvalues, parts = np.empty((2, matrices, d))
    for i in range(matrices):
        W = rng.standard_normal((v, d)) / np.sqrt(d)
        eigenvalues[i], vectors = np.linalg.eigh(W.T @ (h[:, None] * W))
        parts[i] = (vectors.T @ (W.T @ (h * b))) ** 2 / eigenvalues[i]
    noise = h @ b**2 - parts.sum(1)
    factor, added = 1 - 2 * gamma * eigenvalues + 2 * (gamma * eigenvalues) ** 2, (gamma * eigenvalues) ** 2
    risks = []
    for step in range(1, steps[-1] + 1):  # eigenvalues times the expected squares of the errors, from Isserlis' theorem
        parts = factor * parts + added * (parts.sum(1) + noise)[:, None]
        if step in steps:
            risks.append((parts.sum(1) + noise) / 2)
    return np.array(risks)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.7), pytest.param(0.75, 0.4, marks=pytest.mark.full), (0.7, 1.2)])
def test_the_loss_is_the_mean_over_explicit_random_matrices(alpha, beta):
    """The false-alarm rate is 1e-3 for all steps, apart from a difference of order 1/d, for which 5 per cent are allowed."""
    j = np.arange(1.0, V + 1)
    gamma = 0.5 / (j ** (-2 * alpha)).sum()
    risks = exact_risk(alpha, beta, gamma, matrices=64)
    mean, error = risks.mean(1), risks.std(1, ddof=1) / 8
    ours = mean_risk(rf.random_features(D, V, alpha, beta), gamma)
    assert (abs(ours - mean) < 3.7 * error + 0.05 * mean).all()
    # a control: features that are the first d inputs have another loss after 1000 steps
    first = sl.presets.least_squares(
        j[:D] ** (-2 * alpha), j[:D] ** -beta, lr=gamma * D, noise=(j[D:] ** (-2 * alpha - 2 * beta)).sum()
    )
    diagonal = theory.excess_risk(first, D, np.array(STEPS)) + float(first.floor)
    assert (abs(diagonal - mean) > 3.7 * error + 0.05 * mean)[-2:].all()


@pytest.mark.full
def test_the_difference_from_explicit_matrices_falls_with_the_number_of_features():
    """After 10 steps it is 4 per cent at d = 100 and 1 per cent at d = 200, with standard errors of 0.6 per cent."""
    alpha, beta, steps, found = 1.0, 0.7, (10,), []
    for d, matrices in ((100, 1000), (200, 500)):
        gamma = 0.5 / (np.arange(1.0, 4 * d + 1) ** (-2 * alpha)).sum()
        risks = exact_risk(alpha, beta, gamma, matrices, d, 4 * d, steps)
        found.append(1 - mean_risk(rf.random_features(d, 4 * d, alpha, beta), gamma, steps)[0] / risks.mean())
    assert 0.02 < found[0] < 0.06
    assert found[1] < 0.65 * found[0]


@pytest.mark.parametrize(("d", "v", "alpha", "beta"), [(10, 30, 0.8, 0.2), (100, 400, 1.0, 0.7), (10**5, 10**8, 0.75, 1.2)])
def test_bins_keep_the_number_of_eigenvalues_their_sum_and_the_target(d, v, alpha, beta):
    """Sums of the bins are those of all inputs, by their traces; the target's part out of reach comes from another formula."""
    features = rf.random_features(d, v, alpha, beta)
    inputs = sl.spectrum.power_law(v, 2 * alpha, 256)
    assert abs(features.counts.sum() / d - 1) < 1e-9
    trace = v * float(inputs.eigenvalues @ np.array(inputs.shares))
    assert abs(features.counts @ features.eigenvalues / trace - 1) < 1e-9
    target = float(inputs.source(beta) ** 2 @ inputs.eigenvalues)
    assert abs((features.target.sum() + features.unreachable) / target - 1) < 1e-9
    assert (features.target > 0).all()
    assert (np.diff(features.eigenvalues) > 0).all()


@pytest.mark.full
def test_finer_bins_have_the_same_loss():
    steps = np.array([1, 10, 10**3, 10**5, 10**7])
    few, many = (mean_risk(rf.random_features(1000, 10**5, 0.75, 1.2, bins_per_fold=n), 0.2, steps) for n in (10, 40))
    assert (abs(few / many - 1) < 5e-4).all()


@pytest.mark.parametrize(("alpha", "beta", "phase"), [(0.75, 0.3, "I"), (1.0, 0.7, "II"), (0.75, 1.5, "III")])
def test_the_frontier_is_the_best_model_of_the_four_terms(alpha, beta, phase):
    """Slopes of the smallest sum of the terms over model sizes, at two amounts of compute, without constants."""
    d = np.geomspace(1, 1e60, 200001)
    best = []
    for compute in (1e40, 1e50):
        loss = sum(d**-p * (compute / d) ** -q for p, q in rf.loss_terms(alpha, beta).values())
        loss[d > compute] = np.inf
        best.append((loss.min(), d[loss.argmin()]))
    slopes = np.log10(np.array(best[1]) / best[0]) / 10
    name, loss_exponent, size_exponent = rf.frontier_exponents(alpha, beta)
    assert name == phase
    assert abs(slopes - [-loss_exponent, size_exponent]).max() < 0.01


def test_as_many_inputs_as_features_are_refused():
    with pytest.raises(BadInput, match="v must be above d"):
        rf.random_features(100, 100, 1.0, 1.0)
