"""Binned spectra: sums over nodes against sums over all eigenvalues, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl

TIMES = np.concatenate([[0.0], np.geomspace(0.1, 1e5, 60)])


def kernel(x, weight, p):
    """The sum of weight x^p e^(-2 x s) over eigenvalues x, at all times s."""
    return np.exp(-2 * np.outer(TIMES, x)) @ (weight * x**p)


def relative_error(spectrum, listed):
    counts = listed.size * np.array(spectrum.shares)
    x = np.asarray(spectrum.eigenvalues)
    return max(np.abs(kernel(x, counts, p) / kernel(listed, np.ones(listed.size), p) - 1).max() for p in (1, 2))


@pytest.mark.parametrize(("blocks", "bound"), [(30, 2e-3), (48, 1e-4), (80, 1e-6)])
def test_power_law_has_the_sums_of_its_eigenvalues(blocks, bound):
    """The reported error is the true one, at the times that are compared and up to a factor."""
    d, exponent = 20000, 1.2
    spectrum = sl.spectrum.power_law(d, exponent, blocks)
    true = relative_error(spectrum, np.arange(1.0, d + 1) ** -exponent)
    assert len(spectrum.shares) <= blocks
    assert true < 1.2 * spectrum.error + 1e-8
    assert spectrum.error < bound


def test_a_list_of_eigenvalues_is_binned_as_their_formula():
    listed = np.arange(1.0, 5001) ** -1.5
    spectrum = sl.spectrum.from_eigenvalues(np.random.default_rng(0).permutation(listed), blocks=48)
    assert relative_error(spectrum, listed) < 1.2 * spectrum.error + 1e-8
    assert spectrum.error < 1e-3


def test_few_eigenvalues_are_kept_as_they_are():
    for spectrum in (sl.spectrum.power_law(20, 1.0), sl.spectrum.from_eigenvalues(1 / np.arange(20.0, 0.0, -1))):
        np.testing.assert_allclose(spectrum.eigenvalues, 1 / np.arange(1.0, 21))
        np.testing.assert_allclose(spectrum.shares, 0.05)
        assert spectrum.error == 0


def test_equal_eigenvalues_are_one_node():
    spectrum = sl.spectrum.from_eigenvalues(np.repeat([2.0, 0.5], [30, 70]), blocks=10)
    sums = [float(spectrum.eigenvalues**p @ np.array(spectrum.shares)) for p in (1, 2, 3)]
    np.testing.assert_allclose(sums, [0.95, 1.375, 2.4875])


def test_source_has_the_sums_of_the_teacher():
    """Of the squared coefficients, and weighted with e^(-2 x s) as in the risk of gradient flow."""
    j = np.arange(1.0, 20001)
    spectrum = sl.spectrum.power_law(20000, 1.2, blocks=80)
    for exponent in (0.0, 0.6, 1.5):
        squares = spectrum.source(exponent) ** 2
        np.testing.assert_allclose(squares.sum(), (j ** (-2 * exponent)).sum(), rtol=1e-8)
        risk = kernel(np.asarray(spectrum.eigenvalues), squares, 1)
        np.testing.assert_allclose(risk, kernel(j**-1.2, j ** (-2 * exponent), 1), rtol=1e-4)


def test_sums_over_a_billion_ranks_are_integrals():
    """The trace of j^-1.5 and the squared length of j^-0.6, by zeta functions; a binning of twice the ranks differs."""
    d = 10**9
    spectrum = sl.spectrum.power_law(d, 1.5, blocks=80)
    trace = d * float(spectrum.eigenvalues @ np.array(spectrum.shares))
    zeta = {1.5: 2.612375348685488, 1.2: 5.591582441177751}  # from published tables
    assert abs(trace - (zeta[1.5] - 2 * d**-0.5)) < 1e-9
    assert abs((spectrum.source(0.6) ** 2).sum() - (zeta[1.2] - 5 * d**-0.2)) < 1e-7
    assert abs((sl.spectrum.power_law(2 * d, 1.5, 80).source(0.6) ** 2).sum() - (zeta[1.2] - 5 * d**-0.2)) > 1e-3


@pytest.mark.parametrize("ratio", [0.25, 1.0, 3.0])
def test_marchenko_pastur_has_the_moments_of_random_matrices(ratio):
    """The moments are Narayana polynomials of the ratio; a sample of d = 400 has them within its spread of order 1/d."""
    spectrum = sl.spectrum.marchenko_pastur(ratio)
    moment = lambda p: float(spectrum.eigenvalues**p @ np.array(spectrum.shares))
    np.testing.assert_allclose([moment(1), moment(2), moment(3)], [1, 1 + ratio, 1 + 3 * ratio + ratio**2], rtol=1e-10)
    n = round(400 / ratio)
    X = np.random.default_rng(0).standard_normal((n, 400))
    drawn = np.linalg.eigvalsh(X.T @ X / n)
    for p in (1, 2, 3):
        np.testing.assert_allclose((drawn**p).mean(), moment(p), rtol=0.05)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sl.spectrum.power_law(0, 1.5), "d must be"),
        (lambda: sl.spectrum.power_law(10, 0.0), "exponent must be a finite number above 0"),
        (lambda: sl.spectrum.power_law(10, -1.0), "exponent must be a finite number above 0"),
        (lambda: sl.spectrum.power_law(100, 1.0, blocks=2), "blocks must be"),
        (lambda: sl.spectrum.from_eigenvalues([]), "eigenvalues is empty"),
        (lambda: sl.spectrum.from_eigenvalues([1.0, -1.0]), "0 or larger"),
        (lambda: sl.spectrum.from_eigenvalues([0.0, 0.0]), "not 0 in all"),
        (lambda: sl.spectrum.from_eigenvalues([1.0, np.inf]), "eigenvalues"),
        (lambda: sl.spectrum.marchenko_pastur(0.0), "ratio must be a finite number above 0"),
        (lambda: sl.spectrum.power_law(100, 1.0).source("a"), "exponent"),
    ],
)
def test_bad_spectra_are_refused_in_one_sentence(make, words):
    with pytest.raises(sl.BadInput, match=words):
        make()
