r"""One unit and one direction, polynomials of both: all moments are polynomials of :math:`m = M_{11}`, :math:`q = Q_{11}`.

Isserlis' theorem for two fields of covariances q, m and :math:`\rho` is
:math:`E[x^iy^j] = \sum_t \binom it\binom jt t!\,(i-t-1)!!\,(j-t-1)!!\; m^t q^{(i-t)/2}\rho^{(j-t)/2}`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.analysis.equations.base import Equations, Row, bracket, power, rate, times, total
from sgdlimits.analysis.equations.frame import EquationSetting, parameters, zero
from sgdlimits.errors import is_traced
from sgdlimits.model.activation import Polynomial

Powers = tuple[int, int, int]
Terms = Mapping[Powers, Fraction]
"""Coefficients by the powers of x, y and a, or of m, q and a."""


def product(one: Terms, other: Terms) -> Terms:
    found: dict[Powers, Fraction] = defaultdict(Fraction)
    for left, first in one.items():
        for right, second in other.items():
            found[left[0] + right[0], left[1] + right[1], left[2] + right[2]] += first * second
    return found


def added(*parts: tuple[float | Fraction, Terms]) -> Terms:
    found: dict[Powers, Fraction] = defaultdict(Fraction)
    for factor, terms in parts:
        for powers, coefficient in terms.items():
            found[powers] += Fraction(factor) * coefficient
    return {powers: coefficient for powers, coefficient in found.items() if coefficient}


def double_factorial(n: int) -> int:
    return math.prod(range(n, 0, -2))


def averaged(terms: Terms, variance: Fraction, rho: Fraction) -> Terms:
    """The mean over x and y, whose covariances are those of m, q and rho times a variance."""
    found: dict[Powers, Fraction] = defaultdict(Fraction)
    for (i, j, n), coefficient in terms.items():
        for t in range(i % 2, min(i, j) + 1, 2):
            if (j - t) % 2:
                continue
            ways = math.comb(i, t) * math.perm(j, t) * double_factorial(i - t - 1) * double_factorial(j - t - 1)
            found[t, (i - t) // 2, n] += coefficient * ways * variance ** ((i + j) // 2) * rho ** ((j - t) // 2)
    return {powers: coefficient for powers, coefficient in found.items() if coefficient}


def is_one_by_one(setting: EquationSetting) -> bool:
    """Whether one unit learns from one direction, both polynomials, numbers known."""
    model = setting.model
    kinds = model.network.activation, getattr(model.target.readout, "activation", None)
    numbers = model.target.gram, model.data.squared_length, getattr(model.target.readout, "second", None)
    alone = model.network.plain and model.width == model.teachers == 1 and model.loss.quadratic and model.centred
    return alone and all(isinstance(kind, Polynomial) for kind in kinds) and not any(map(is_traced, numbers))


class PolynomialParts(NamedTuple):
    """Polynomials of one unit and one direction: those of the fields x and y, and numbers."""

    weight: Fraction
    rho: Fraction
    variance: Fraction
    unit: Terms
    first: Terms
    residual: Terms


def polynomial_parts(setting: EquationSetting) -> PolynomialParts:
    """Return the unit, the layer times its slope, and the residual without the label noise, as polynomials of the fields."""
    model = setting.model
    w, rho = Fraction(model.loss.weight), Fraction(f"{float(model.target.gram[0, 0]):.14g}")
    variance = Fraction(f"{float(model.data.squared_length):.14g}")
    weight = Fraction(f"{float(model.target.readout.weights(1)[0]):.14g}")
    layer = {(0, 0, 1): Fraction(1)} if setting.constant is None else {(0, 0, 0): Fraction(f"{setting.constant:.14g}")}
    s, g = model.network.activation.coefficients, model.target.readout.activation.coefficients
    unit = {(i, 0, 0): Fraction(f"{c:.14g}") for i, c in enumerate(s)}
    slope = {(i - 1, 0, 0): i * c for (i, _, _), c in unit.items() if i}
    label = {(0, j, 0): weight * Fraction(f"{c:.14g}") for j, c in enumerate(g)}
    D = added((1, product(layer, unit)), (-1, label))
    return PolynomialParts(w, rho, variance, unit, product(layer, slope), D)


def one_by_one(setting: EquationSetting) -> Equations:
    """The ODE of one unit and one direction, term by term; on the sphere q = 1 is put in."""
    algorithm = setting.algorithm
    assert isinstance(algorithm, OnePassSGD)
    w, rho, variance, unit, first, D = polynomial_parts(setting)
    mean = lambda terms: averaged(terms, variance, rho)
    G = added((2 * w, product(first, D)))
    x, y = m, q = {(1, 0, 0): Fraction(1)}, {(0, 1, 0): Fraction(1)}
    fixed, field = mean(product(G, y)), mean(product(G, x))
    spread, noise = mean(product(G, G)), added((4 * w * w, mean(product(first, first))))
    ridge = r"\alpha" if not zero(algorithm.ridge) else ""
    if algorithm.sphere:
        half = lambda terms: added((-variance / 2, product(m, terms)))
        population = added((-1, fixed), (1, product(m, field)))
        parts = [
            term_latex(on_sphere(population), r"\gamma"),
            term_latex(on_sphere(half(spread)), r"\gamma^{2}"),
            term_latex(on_sphere(half(noise)), r"\gamma^{2} \Delta"),
        ]
        ode = [Row(rate("m"), total(parts))]
        where = [Row(r"m = M_{11}, \quad Q_{11} = 1 \text{ on the sphere}")]
    else:
        corrector = [
            term_latex(added((variance, spread)), r"\gamma^{2}"),
            term_latex(added((variance, noise)), r"\gamma^{2} \Delta"),
        ]
        decay = lambda factor, terms: term_latex(added((factor, terms)), rf"\gamma {ridge}") if ridge else ""
        ode = [
            Row(rate("m"), total([term_latex(added((-1, fixed)), r"\gamma"), decay(-1, m)])),
            Row(rate("q"), total([term_latex(added((-2, field)), r"\gamma"), decay(-2, q), *corrector])),
        ]
        where = [Row(r"m = M_{11}, \quad q = Q_{11}")]
    if setting.trains_second:
        second = added((-2 * w, mean(product(unit, D))))
        second = on_sphere(second) if algorithm.sphere else second
        decay_a = times(-1, r"\gamma_{2}", ridge, "a") if ridge else ""
        ode.append(Row(rate("a"), total([term_latex(second, r"\gamma_{2}"), decay_a])))
    hidden = {"p", "k", r"\sigma^{2}"} | ({r"\alpha"} if algorithm.sphere and not setting.trains_second else set())
    return Equations(tuple(ode), tuple(where), tuple(row for row in parameters(setting) if row[1] not in hidden))


def on_sphere(terms: Terms) -> Terms:
    """With q = 1."""
    return added(*((c, {(i, 0, n): Fraction(1)}) for (i, _, n), c in terms.items()))


def term_latex(terms: Terms, before: str) -> str:
    """A polynomial behind letters: what all terms have in common first, powers of 1 - m² apart where it has them."""
    if not terms:
        return ""
    common = tuple(min(powers[i] for powers in terms) for i in range(3))
    rest: Terms = {(i - common[0], j - common[1], n - common[2]): value for (i, j, n), value in terms.items()}
    times_out = 0
    while (divided := _by_one_minus_square(rest)) is not None:
        rest, times_out = divided, times_out + 1
    letters = [*map(power, "mqa", common), power(r"\left(1 - m^{2}\right)", times_out)]
    if len(rest) == 1:
        return times(next(iter(rest.values())), before, *letters)
    ordered = sorted(rest.items(), key=lambda item: (sum(item[0]), item[0]))
    size = Fraction(math.gcd(*(c.numerator for c in rest.values())), math.lcm(*(c.denominator for c in rest.values())))
    size = size if ordered[0][1] > 0 else -size
    inside = total(times(c / size, *map(power, "mqa", powers)) for powers, c in ordered)
    return times(size, before, *letters, bracket(inside))


def _by_one_minus_square(terms: Terms) -> Terms | None:
    """The quotient by 1 - m², where there is no remainder."""
    if len(terms) < 2:
        return None
    left, quotient = dict(terms), dict[Powers, Fraction]()
    while left:
        powers = min(left)
        quotient[powers] = left.pop(powers)
        above = (powers[0] + 2, *powers[1:])
        left[above] = left.get(above, Fraction(0)) + quotient[powers]
        if not left[above]:
            del left[above]
        if powers[0] > max(i for i, _, _ in terms):
            return None
    return quotient


def derivative_means(student: Polynomial, teacher: Polynomial, C: str) -> list[Row]:
    """The means of the derivatives of polynomial units, of each order, as polynomials of the variance of the field."""
    degree = max(student.degree, teacher.degree)
    return [
        Row(f"h_{{{order}{index}}}", _mean_of_derivative(unit, order, f"{C}_{{{index}{index}}}"))
        for unit, index in ((student, "j"), (teacher, "r"))
        for order in range(degree + 1)
    ]


def _mean_of_derivative(unit: Polynomial, order: int, v: str) -> str:
    return total(
        times(c * math.perm(i, order) * double_factorial(i - order - 1), power(v, (i - order) // 2))
        for i, c in enumerate(unit.coefficients)
        if c and i >= order and (i - order) % 2 == 0
    )
