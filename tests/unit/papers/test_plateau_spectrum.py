"""The linear law of plateaus on power-law inputs, against the drift of the ODE and its Jacobian by autodiff."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.papers.scaling import theory
from sgdlimits.papers.scaling.figures import plateau_spectrum as figure

INPUTS = sl.Spectrum([3.0, 1.0, 0.25], [0.2, 0.2, 0.6])
VALUES, SHARES, LR = np.array(INPUTS.eigenvalues) / 0.95, np.array(INPUTS.shares), 0.02
INPUTS = sl.Spectrum(VALUES, SHARES.tolist())


def state(M, scale=1.0):
    """Random weights, whose squared norms are shared by the blocks as their dimensions, with given overlaps."""
    return sl.Overlaps([1.0], np.reshape(M, (3, 1, 1)), scale * SHARES[:, None, None])


def test_the_plateau_of_exponent_two_grows_by_a_matrix_of_rank_one():
    """Free weights have the field variance 1/3 on the plateau, where the decay vanishes."""
    found = sl.linearise(figure.problem(figure.FREE_2, INPUTS, LR), state(np.zeros(3), 1 / 3), corrector=False)
    np.testing.assert_allclose(found.matrix[:3, :3], 4 * LR * np.outer(VALUES * SHARES, VALUES), atol=1e-12)
    rate = 4 * LR * VALUES**2 @ SHARES
    assert np.isclose(np.linalg.eigvals(found.matrix[:3, :3]).real.max(), rate, rtol=1e-9)
    assert np.isclose(theory.plateau_time(2, LR, VALUES**2 @ SHARES, 1e4), np.log(100) / rate, rtol=1e-12)


def test_free_weights_of_another_norm_have_a_decay_on_the_diagonal():
    """Control: the law holds at the field variance 1/3 only, to which the squared loss brings free weights."""
    found = sl.linearise(figure.problem(figure.FREE_2, INPUTS, LR), state(np.zeros(3)), corrector=False)
    expected = 4 * LR * np.outer(VALUES * SHARES, VALUES) - 4 * LR * np.diag(VALUES)
    np.testing.assert_allclose(found.matrix[:3, :3], expected, atol=1e-12)


@pytest.mark.parametrize(("case", "n"), [(figure.SPHERE_2, 2), (figure.SPHERE_3, 3)])
def test_overlaps_on_the_sphere_grow_along_the_covariance_times_the_teacher(case, n):
    M = 1e-4 * np.array([1.0, -0.5, 2.0])
    drift = np.asarray(figure.problem(case, INPUTS, LR).drift_parts(state(M))[0].M).ravel()
    expected = {2: 4, 3: 18}[n] * LR * (VALUES @ M) ** (n - 1) * VALUES * SHARES
    np.testing.assert_allclose(drift, expected, rtol=1e-3)
