r"""ODE in LaTeX of one polynomial unit that learns one polynomial direction, whose moments are polynomials in the overlaps.

The overlaps are :math:`m = M_{11}` and :math:`q = Q_{11}`. Isserlis' theorem for the fields x and y of variances q and
:math:`\rho` and covariance m is
:math:`E[x^iy^j] = \sum_t \binom it\binom jt t!\,(i-t-1)!!\,(j-t-1)!!\; m^t q^{(i-t)/2}\rho^{(j-t)/2}`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.analysis.equations.base import (
    Equations,
    Row,
    bracket_latex,
    power_latex,
    product_latex,
    sum_latex,
    time_derivative_latex,
)
from sgdlimits.analysis.equations.frame import EquationSetting, is_zero, list_parameters
from sgdlimits.errors import is_traced
from sgdlimits.model.activation import Polynomial

# Fractions rather than floats: terms must cancel exactly
VariablePowers = tuple[int, int, int]
PolynomialTerms = Mapping[VariablePowers, Fraction]
"""Type of a polynomial: its coefficients, by the powers of the variables (x, y, a) or (m, q, a)."""


def multiply_polynomials(one: PolynomialTerms, other: PolynomialTerms) -> PolynomialTerms:
    """Return the product of two polynomials, which are given as coefficients by powers."""
    found: dict[VariablePowers, Fraction] = defaultdict(Fraction)
    for left, first in one.items():
        for right, second in other.items():
            found[left[0] + right[0], left[1] + right[1], left[2] + right[2]] += first * second
    return found


def linear_combination(*parts: tuple[float | Fraction, PolynomialTerms]) -> PolynomialTerms:
    """Return the linear combination of polynomials, given as pairs of a factor and coefficients by powers.

    Terms that cancel are left out.
    """
    found: dict[VariablePowers, Fraction] = defaultdict(Fraction)
    for factor, terms in parts:
        for powers, coefficient in terms.items():
            found[powers] += Fraction(factor) * coefficient
    return {powers: coefficient for powers, coefficient in found.items() if coefficient}


def double_factorial(n: int) -> int:
    """Return n!! = n (n - 2) (n - 4) ..., which is 1 for n <= 0."""
    return math.prod(range(n, 0, -2))


def gaussian_mean(terms: PolynomialTerms, variance: Fraction, rho: Fraction) -> PolynomialTerms:
    """Return the mean of a polynomial in x, y and a over Gaussian x and y, as a polynomial in the overlaps m, q and a.

    The variances of x and y are q and rho, their covariance is m, all times `variance`.
    """
    found: dict[VariablePowers, Fraction] = defaultdict(Fraction)
    for (i, j, n), coefficient in terms.items():
        # t pairs of x with y; the other factors pair among themselves, so i - t is even
        for t in range(i % 2, min(i, j) + 1, 2):
            if (j - t) % 2:
                continue
            ways = math.comb(i, t) * math.perm(j, t) * double_factorial(i - t - 1) * double_factorial(j - t - 1)
            found[t, (i - t) // 2, n] += coefficient * ways * variance ** ((i + j) // 2) * rho ** ((j - t) // 2)
    return {powers: coefficient for powers, coefficient in found.items() if coefficient}


def is_single_unit(setting: EquationSetting) -> bool:
    """Return whether one polynomial unit learns a polynomial of one direction; false if parameters are traced."""
    model = setting.model
    activations = model.network.activation, getattr(model.target.readout, "activation", None)
    parameters = model.target.gram, model.data.squared_length, getattr(model.target.readout, "second", None)
    single = model.network.plain and model.width == model.teachers == 1 and model.loss.quadratic and model.centred
    return single and all(isinstance(each, Polynomial) for each in activations) and not any(map(is_traced, parameters))


class SingleUnitPolynomials(NamedTuple):
    """Polynomials of one unit that learns one direction, in the fields x and y and the second layer a.

    Parameters
    ----------
    loss_weight : factor of the squared residual in the loss
    rho : squared norm of the fixed direction
    variance : squared length of an input over d
    unit : activation of the unit
    output_slope : derivative of the network's output with respect to the field x
    residual : output minus label, without the label noise
    """

    loss_weight: Fraction
    rho: Fraction
    variance: Fraction
    unit: PolynomialTerms
    output_slope: PolynomialTerms
    residual: PolynomialTerms


def single_unit_polynomials(setting: EquationSetting) -> SingleUnitPolynomials:
    """Return the activation, the slope of the output and the residual of one unit and one direction as polynomials."""
    model = setting.model
    # 14 digits: 1/3 as a float becomes a short fraction again, and rounding of the last bits does not show
    w, rho = Fraction(model.loss.weight), Fraction(f"{float(model.target.gram[0, 0]):.14g}")
    variance = Fraction(f"{float(model.data.squared_length):.14g}")
    weight = Fraction(f"{float(model.target.readout.weights(1)[0]):.14g}")
    layer = {(0, 0, 1): Fraction(1)} if setting.constant is None else {(0, 0, 0): Fraction(f"{setting.constant:.14g}")}
    s, g = model.network.activation.coefficients, model.target.readout.activation.coefficients
    unit = {(i, 0, 0): Fraction(f"{c:.14g}") for i, c in enumerate(s)}
    slope = {(i - 1, 0, 0): i * c for (i, _, _), c in unit.items() if i}
    label = {(0, j, 0): weight * Fraction(f"{c:.14g}") for j, c in enumerate(g)}
    D = linear_combination((1, multiply_polynomials(layer, unit)), (-1, label))
    return SingleUnitPolynomials(w, rho, variance, unit, multiply_polynomials(layer, slope), D)


def single_unit_equations(setting: EquationSetting) -> Equations:
    """Return the ODE in LaTeX of one polynomial unit and one direction, term by term; on the sphere its norm q is 1."""
    algorithm = setting.algorithm
    assert isinstance(algorithm, OnePassSGD)
    w, rho, variance, unit, first, D = single_unit_polynomials(setting)
    mean = lambda terms: gaussian_mean(terms, variance, rho)
    G = linear_combination((2 * w, multiply_polynomials(first, D)))
    x, y = m, q = {(1, 0, 0): Fraction(1)}, {(0, 1, 0): Fraction(1)}
    fixed, field = mean(multiply_polynomials(G, y)), mean(multiply_polynomials(G, x))
    spread, noise = mean(multiply_polynomials(G, G)), linear_combination((4 * w * w, mean(multiply_polynomials(first, first))))
    ridge = r"\alpha" if not is_zero(algorithm.ridge) else ""
    if algorithm.sphere:
        half = lambda terms: linear_combination((-variance / 2, multiply_polynomials(m, terms)))
        population = linear_combination((-1, fixed), (1, multiply_polynomials(m, field)))
        parts = [
            polynomial_latex(with_unit_norm(population), r"\gamma"),
            polynomial_latex(with_unit_norm(half(spread)), r"\gamma^{2}"),
            polynomial_latex(with_unit_norm(half(noise)), r"\gamma^{2} \Delta"),
        ]
        ode = [Row(time_derivative_latex("m"), sum_latex(parts))]
        where = [Row(r"m = M_{11}, \quad Q_{11} = 1 \text{ on the sphere}")]
    else:
        corrector = [
            polynomial_latex(linear_combination((variance, spread)), r"\gamma^{2}"),
            polynomial_latex(linear_combination((variance, noise)), r"\gamma^{2} \Delta"),
        ]

        def decay(factor: int, terms: PolynomialTerms) -> str:
            return polynomial_latex(linear_combination((factor, terms)), rf"\gamma {ridge}") if ridge else ""

        ode = [
            Row(
                time_derivative_latex("m"),
                sum_latex([polynomial_latex(linear_combination((-1, fixed)), r"\gamma"), decay(-1, m)]),
            ),
            Row(
                time_derivative_latex("q"),
                sum_latex([polynomial_latex(linear_combination((-2, field)), r"\gamma"), decay(-2, q), *corrector]),
            ),
        ]
        where = [Row(r"m = M_{11}, \quad q = Q_{11}")]
    if setting.trains_second:
        second = linear_combination((-2 * w, mean(multiply_polynomials(unit, D))))
        second = with_unit_norm(second) if algorithm.sphere else second
        decay_a = product_latex(-1, r"\gamma_{2}", ridge, "a") if ridge else ""
        ode.append(Row(time_derivative_latex("a"), sum_latex([polynomial_latex(second, r"\gamma_{2}"), decay_a])))
    # both are 1, and the ridge does not act on the norm on the sphere
    hidden = {"p", "k", r"\sigma^{2}"} | ({r"\alpha"} if algorithm.sphere and not setting.trains_second else set())
    return Equations(tuple(ode), tuple(where), tuple(row for row in list_parameters(setting) if row[1] not in hidden))


def with_unit_norm(terms: PolynomialTerms) -> PolynomialTerms:
    """Substitute the squared norm q = 1 in a polynomial in the overlaps m, q and a."""
    return linear_combination(*((c, {(i, 0, n): Fraction(1)}) for (i, _, n), c in terms.items()))


def polynomial_latex(terms: PolynomialTerms, before: str) -> str:
    """Format `before` times a polynomial in m, q and a as LaTeX, with common factors and powers of 1 - m² factored out."""
    if not terms:
        return ""
    common = tuple(min(powers[i] for powers in terms) for i in range(3))
    rest: PolynomialTerms = {(i - common[0], j - common[1], n - common[2]): value for (i, j, n), value in terms.items()}
    multiplicity = 0
    while (divided := _divide_by_one_minus_square(rest)) is not None:
        rest, multiplicity = divided, multiplicity + 1
    letters = [*map(power_latex, "mqa", common), power_latex(r"\left(1 - m^{2}\right)", multiplicity)]
    if len(rest) == 1:
        return product_latex(next(iter(rest.values())), before, *letters)
    ordered = sorted(rest.items(), key=lambda item: (sum(item[0]), item[0]))
    # common factor of all coefficients, positive for the term of lowest order
    size = Fraction(math.gcd(*(c.numerator for c in rest.values())), math.lcm(*(c.denominator for c in rest.values())))
    size = size if ordered[0][1] > 0 else -size
    inside = sum_latex(product_latex(c / size, *map(power_latex, "mqa", powers)) for powers, c in ordered)
    return product_latex(size, before, *letters, bracket_latex(inside))


def _divide_by_one_minus_square(terms: PolynomialTerms) -> PolynomialTerms | None:
    """Return the quotient of a polynomial in m, q and a by 1 - m², or None if the division leaves a remainder."""
    if len(terms) < 2:
        return None
    left, quotient = dict(terms), dict[VariablePowers, Fraction]()
    while left:
        # ascending division: the quotient may begin with any power
        powers = min(left)
        quotient[powers] = left.pop(powers)
        above = (powers[0] + 2, *powers[1:])
        left[above] = left.get(above, Fraction(0)) + quotient[powers]
        if not left[above]:
            del left[above]
        if powers[0] > max(i for i, _, _ in terms):  # the division does not end
            return None
    return quotient


def derivative_means(student: Polynomial, teacher: Polynomial, C: str) -> list[Row]:
    """Return rows that define the mean of each derivative of two polynomial units, as a polynomial in the field's variance.

    `C` is the LaTeX symbol of the covariance of the fields.
    """
    degree = max(student.degree, teacher.degree)
    return [
        Row(f"h_{{{order}{index}}}", _mean_of_derivative(unit, order, f"{C}_{{{index}{index}}}"))
        for unit, index in ((student, "j"), (teacher, "r"))
        for order in range(degree + 1)
    ]


def _mean_of_derivative(unit: Polynomial, order: int, v: str) -> str:
    """Format the mean of a unit's derivative of a given order over a Gaussian field of variance `v`."""
    return sum_latex(
        product_latex(c * math.perm(i, order) * double_factorial(i - order - 1), power_latex(v, (i - order) // 2))
        for i, c in enumerate(unit.coefficients)
        if c and i >= order and (i - order) % 2 == 0
    )
