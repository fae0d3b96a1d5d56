"""Hermite coefficients against closed forms and mpmath, and information exponents."""

from __future__ import annotations

import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from numpy.polynomial import hermite_e
from scipy.special import factorial, factorial2
from scipy.stats import norm

import sgdlimits as sl
from sgdlimits.model.activation import Polynomial


def he(m, x):
    """The Hermite polynomial of order m."""
    return hermite_e.hermeval(x, [0] * m + [1])


# --- coefficients ------------------------------------------------------------------------------------------------------------


def test_coefficients_of_relu_and_erf_are_those_in_closed_form():
    r = 1 / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(sl.hermite_coefficients("relu", 4), [r, 0.5, r, 0, -r], atol=1e-12)
    k = np.arange(5)
    odd = (-1 / 2) ** k * np.where(k > 0, factorial2(2 * k - 1), 1) / np.sqrt(np.pi)
    np.testing.assert_allclose(sl.hermite_coefficients("erf", 9)[1::2], odd, rtol=1e-10)
    np.testing.assert_allclose(sl.hermite_coefficients("erf", 9)[::2], 0, atol=1e-10)


def test_coefficients_of_tanh_are_those_of_mpmath():
    density = lambda x: mpmath.exp(-(x**2) / 2) / mpmath.sqrt(2 * mpmath.pi)
    exact = [float(2 * mpmath.quad(lambda x, m=m: mpmath.tanh(x) * he(m, x) * density(x), [0, 2, 5, 12])) for m in (1, 3, 5)]
    np.testing.assert_allclose(sl.hermite_coefficients("tanh", 5)[1::2], exact, rtol=1e-11)


def test_a_jump_and_a_kink_anywhere_are_integrated_exactly():
    """E[sign(z - a) He_m] = 2 He_(m-1)(a) phi(a), and one order more for |z - a|."""
    a = -1.234
    heights = [2 * he(m, a) * norm.pdf(a) for m in range(6)]
    np.testing.assert_allclose(sl.hermite_coefficients(lambda x: jnp.sign(x - a), 6)[1:], heights, atol=1e-10)
    np.testing.assert_allclose(sl.hermite_coefficients(lambda x: jnp.abs(x - a), 7)[2:], heights, atol=1e-10)


def test_polynomials_are_expanded_exactly():
    np.testing.assert_allclose(sl.hermite_coefficients("he7", 8), [0] * 7 + [factorial(7), 0], rtol=1e-14)
    cubic = Polynomial([1, 2, 0, 4])
    np.testing.assert_allclose(sl.hermite_coefficients(cubic, 5), [1, 14, 0, 24, 0, 0], rtol=1e-14)
    np.testing.assert_allclose(
        sl.hermite_coefficients(lambda x: 1 + 2 * x + 4 * x**3, 5), sl.hermite_coefficients(cubic, 5), atol=1e-9
    )


def test_the_squares_of_all_coefficients_add_up():
    """E fn^2 = sum c_m^2/m!, for a function whose coefficients fall quickly."""
    c = sl.hermite_coefficients("sigmoid", 60)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    square = 12 * (weights * norm.pdf(12 * nodes) / (1 + np.exp(-12 * nodes)) ** 2).sum()
    assert abs((c**2 / factorial(np.arange(61))).sum() - square) < 1e-10


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (
            lambda x: jnp.exp(x**2),
            "do not converge: the estimate of E[fn] is inf with an error of about inf. Give a function that grows",
        ),
        (lambda x: jnp.exp(0.49 * x**2), "do not converge: the estimate of E[fn] is 7.07107 with an error of about 0.0"),
        (lambda x: jnp.sin(1 / x), "has few jumps"),
        (jnp.log, "must return finite numbers on an array of numbers"),
    ],
)
def test_integrals_that_do_not_converge_are_told_with_what_they_came_to(fn, words):
    with pytest.raises(sl.BadInput) as told:
        sl.hermite_coefficients(fn, 2)
    assert words in str(told.value)


# --- the exponent ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "exponent"),
    [("erf", 1), ("relu", 1), ("sigmoid", 1), ("abs", 2), ("square", 2), ("he5", 5), ("he12", 12)],
)
def test_exponents_by_name(target, exponent):
    assert sl.information_exponent(target) == exponent


def test_exponents_of_functions_and_problems():
    assert sl.information_exponent(lambda x: jnp.cos(2 * x)) == 2
    assert sl.information_exponent(lambda x: jnp.sin(1.5 * x) - 1.5 * jnp.exp(-1.125) * x) == 3
    assert sl.information_exponent(Polynomial([3, 0, -6, 0, 1])) == 4
    assert sl.information_exponent(sl.presets.single_index("relu", "he3")) == 3
    own = sl.ProjectionProblem(
        sl.Target(lambda fixed: fixed[0] ** 2 - fixed[0] ** 4 / 24, gram=[[4.0]]),
        sl.TwoLayer(1, "square"),
        sl.SquaredLoss(),
        sl.OnePassSGD(lr=0.1),
    )
    assert sl.information_exponent(own) == 4  # of 4 z^2 - 16 z^4/24, whose second coefficient is 8 - 16 12/24


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (lambda x: 0 * x + 3, "not constant"),
        (Polynomial([2.0]), "not constant"),
        (sl.presets.binary_mixture(2.0, 0.1), "needs one teacher"),
        ("he99", "unknown activation"),
    ],
)
def test_what_has_no_exponent_is_told(target, words):
    with pytest.raises(sl.BadInput, match=words):
        sl.information_exponent(target)
