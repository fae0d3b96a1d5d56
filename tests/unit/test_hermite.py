"""Hermite coefficients against closed forms and mpmath; what information exponents say of learning rates and times."""

from __future__ import annotations

import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.polynomial import hermite_e
from scipy.special import factorial, factorial2
from scipy.stats import norm

import sgdlimits as sl
from sgdlimits.model.activation import ACTIVATIONS, Polynomial
from sgdlimits.theory import mediocrity
from sgdlimits.theory.single_index import _drift_parts, _nodes, _Series, exit_time, samples, start_quantile


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
    np.testing.assert_allclose(cubic.hermite(5), [1, 14, 0, 24, 0, 0], rtol=1e-14)
    np.testing.assert_allclose(sl.hermite_coefficients(lambda x: 1 + 2 * x + 4 * x**3, 5), cubic.hermite(5), atol=1e-9)


def test_the_squares_of_all_coefficients_add_up():
    """E fn^2 = sum c_m^2/m!, for a function whose coefficients fall quickly."""
    c = ACTIVATIONS["sigmoid"].hermite(60)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    square = 12 * (weights * norm.pdf(12 * nodes) / (1 + np.exp(-12 * nodes)) ** 2).sum()
    assert abs((c**2 / factorial(np.arange(61))).sum() - square) < 1e-10


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: jnp.exp(x**2), "do not converge: E[fn] came to inf with an error of about inf. Give a function that grows"),
        (lambda x: jnp.exp(0.49 * x**2), "do not converge: E[fn] came to 7.07107 with an error of about 0.0"),
        (lambda x: jnp.sin(1 / x), "has few jumps"),
        (jnp.log, "is nan. Give a function that is finite"),
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
        (sl.presets.quadratic_network(teachers=2), "needs one teacher"),
        ("he99", "unknown activation"),
    ],
)
def test_what_has_no_exponent_is_told(target, words):
    with pytest.raises(sl.BadInput, match=words):
        sl.information_exponent(target)


# --- learning rates ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "noise"), [(1, 0.0), (1, 0.7), (3, 0.0), (3, 0.7)])
def test_phase_retrieval_asks_for_the_published_rate_where_the_way_is_short(width, noise):
    """And for 1/(12 + noise/(1 - overlap^2)) in general, by one unit."""
    problem = sl.presets.phase_retrieval(width=width, noise=noise)
    short = sl.recommended_lr(problem, d=10**8, overlap=1e-3)
    assert abs(short / float(mediocrity.optimal_lr(width, noise)) - 1) < 1e-4
    if width == 1:
        assert abs(1 / sl.recommended_lr(problem, d=1000) - (12 + noise / 0.75)) < 1e-9


def test_rates_are_constant_for_small_exponents_and_fall_with_d_for_others():
    for activation, power in {"linear": 0, "square": 0, "he3": -1 / 2, "he4": -1}.items():
        problem = sl.presets.single_index(activation)
        small, large = (sl.recommended_lr(problem, d) for d in (10**3, 10**5))
        assert abs(np.log(large / small) / np.log(100) - power) < 1e-3


def test_a_rate_is_for_a_step_of_a_batch_and_does_not_depend_on_the_problem_s_own():
    one = sl.recommended_lr(sl.presets.single_index("square", lr=0.3, noise=0.1), 1000)
    many = sl.recommended_lr(sl.presets.single_index("square", lr=0.01, noise=0.1, batch=5), 1000)
    assert abs(many / one - 5) < 1e-9
    free = sl.recommended_lr(sl.presets.single_index("square", noise=0.1, sphere=False), 1000)
    assert abs(free / one - 1) < 1e-9


def test_an_odd_target_of_the_other_sign_is_learnt_with_the_other_sign_of_the_overlap():
    plus, minus = sl.presets.single_index("linear", lr=0.5), sl.presets.single_index("linear", Polynomial([0, -1]), lr=0.5)
    assert abs(sl.recommended_lr(minus, 100) / sl.recommended_lr(plus, 100) - 1) < 1e-9
    assert abs(exit_time(minus, 100, 0.5) / exit_time(plus, 100, 0.5) - 1) < 1e-9
    assert exit_time(minus, 100, 0.5, start=0.1) == np.inf


@pytest.mark.parametrize(
    ("student", "target", "width", "words"),
    [
        ("linear", "square", 1, "no Hermite coefficient in common"),
        ("square", Polynomial([1, 0, -1]), 1, "of order 2 of student and target have opposite signs"),
        (Polynomial([0, 1, 0, 1]), "he3", 2, "push each other away"),
        ("linear", Polynomial([0, 0.3]), 2, "does not grow beyond 0.6"),
    ],
)
def test_overlaps_that_do_not_grow_are_told_with_the_reason(student, target, width, words):
    problem = sl.presets.single_index(student, target, width=width)
    with pytest.raises(sl.BadInput, match=words):
        sl.recommended_lr(problem, 1000, overlap=0.9)


def test_bad_dimensions_and_overlaps_are_refused():
    problem = sl.presets.phase_retrieval()
    with pytest.raises(sl.BadInput, match="above that of a random start"):
        sl.recommended_lr(problem, 100, overlap=0.05)
    with pytest.raises(sl.BadInput, match="between 0 and 1"):
        sl.recommended_lr(problem, 100, overlap=1.5)
    with pytest.raises(sl.BadInput, match=r"got 'he3'. Give, say, presets.single_index"):
        sl.recommended_lr("he3", 100)
    with pytest.raises(sl.BadInput, match="one unit on the sphere"):
        exit_time(sl.presets.phase_retrieval(width=2), 100, 0.5)


# --- times -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("activation", "width"), [("erf", 1), ("erf", 2), ("he3", 1)])
def test_series_of_the_drift_is_the_problem_s(activation, width):
    """Also where students push each other away."""
    problem = sl.presets.single_index(activation, lr=0.3, noise=0.2, width=width)
    m = _nodes(0.5)
    np.testing.assert_allclose(_Series.of(problem)(m), _drift_parts(problem, jnp.asarray(m))[0], rtol=1e-7, atol=1e-13)


def test_times_of_phase_retrieval_are_those_of_its_own_theory():
    problem, d, end = sl.presets.phase_retrieval(lr=0.08, noise=0.3), 10**5, 0.5
    m0 = d**-0.5
    share = (end**2 - m0**2) / (1 - m0**2)
    for average, noise, error in (("ode", False, 1e-8), ("backward", True, 1e-5)):
        theirs = mediocrity.exit_time(problem, d, share, average, start=m0)
        assert abs(exit_time(problem, d, end, noise=noise) / theirs - 1) < error
    assert exit_time(sl.presets.phase_retrieval(lr=1 / 6), 100, 0.5) == np.inf
    assert exit_time(problem, 100, 0.5, start=0.0) == np.inf
    assert exit_time(problem, 100, [0.05, 0.5]).tolist() == [0.0, exit_time(problem, 100, 0.5)]


def test_time_of_a_linear_target_is_the_closed_one():
    """At lr = 1 the drift is (1 - m^2) - m (1 - m) = 1 - m."""
    time = exit_time(sl.presets.single_index("linear", lr=1.0), [100, 10_000], 0.5)
    np.testing.assert_allclose(time, np.log([0.9 / 0.5, 0.99 / 0.5]), rtol=1e-8)


def test_growth_and_quantiles_of_the_start():
    np.testing.assert_allclose(samples(2, [10, 100]), [10 * np.log(10), 100 * np.log(100)])
    assert (samples(1, 50), samples(4, 10)) == (50.0, 1000.0)
    start = np.abs(sl.RandomInit(d=20).sample(sl.presets.phase_retrieval(), runs=4000).M[:, 0, 0])
    assert abs((start < start_quantile(20)).mean() - 0.5) < 4 * 0.5 / np.sqrt(4000)


# --- the command line --------------------------------------------------------------------------------------------------------


def run(line):
    from sgdlimits.cli import main

    return CliRunner().invoke(main, line.split(), prog_name="sgdlimits")


def test_exponent_on_the_command_line():
    shown = run("exponent square --d 1000")
    assert shown.exit_code == 0, shown.output
    assert "square: information exponent 2, of the order of d log d samples" in shown.output
    assert "c_0 = 1, c_1 = 0, c_2 = 2," in shown.output
    assert "0.08333 for d = 1000" in shown.output
    assert "t = 17.42" in shown.output
    assert "sgdlimits run single_index --activation square --lr 0.0833 --d 1000" in shown.output


@pytest.mark.parametrize(
    "line", ["exponent he99", "run single_index --d 30 --activation he99", "run committee --d 30 --activation x"]
)
def test_an_unknown_activation_is_one_sentence_on_the_command_line(line):
    told = run(line)
    assert told.exit_code == 2
    assert told.output.startswith("Error: unknown activation")
    assert len(told.output.splitlines()) == 1


def test_a_polynomial_is_written_in_words():
    from sgdlimits.cli.info import _in_words
    from sgdlimits.trajectory.record import _encode

    assert _in_words(_encode(Polynomial([0, -3, 0, 1]))) == "Polynomial(coefficients=[0, -3, 0, 1])"
