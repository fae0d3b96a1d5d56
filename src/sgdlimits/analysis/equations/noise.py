r"""Noise of plain SGD in LaTeX: the covariance of the increments of one sample, in closed form if the expectations have one.

With the learning rate :math:`\gamma`, the gradients :math:`G_j`, and the fields :math:`\lambda_j` of students and
:math:`\lambda^*_r` of fixed directions, one sample changes d times the statistics by :math:`-\gamma G_j\lambda^*_r` (M) and
:math:`-\gamma(G_j\lambda_l + G_l\lambda_j) + \gamma^2\sigma^2 G_jG_l` (Q). For squared units the residual D is a quadratic form
of the fields v, so that the covariances are those of :math:`D^b v_mv_n` with b = 1, 2: Wick sums over the series of
`sgdlimits.expectation.gaussian.quadratic_forms`, written out up to the order 4, at any width. For one polynomial unit and one
polynomial direction the covariances are polynomials in the overlaps m and q. For all other models the covariances are written
as expectations. On the sphere the change of the norms is subtracted.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.analysis.equations.base import Row, bracket_latex, power_latex, product_latex, sum_latex
from sgdlimits.analysis.equations.frame import EquationSetting, variance_latex
from sgdlimits.analysis.equations.polynomial import (
    PolynomialTerms,
    double_factorial,
    gaussian_mean,
    linear_combination,
    multiply_polynomials,
    polynomial_latex,
    single_unit_polynomials,
    with_unit_norm,
)
from sgdlimits.analysis.equations.words import label_rows, law_rows, loss_row, network_row
from sgdlimits.errors import BadInput
from sgdlimits.expectation import Squares, choose_expectation
from sgdlimits.part import at_start

NOISE_HEADING = Row(
    r"\text{noise of SGD: } d\langle x, y \rangle = \tfrac{1}{d} \Sigma^{xy}\, dt"
    r" \text{ is added to the drift, } \Sigma \text{ by increments of one sample}"
)
INDEX_RANGES_ROW = Row(r"j, l, m, n = 1, \dots, p \text{ and } r, s = p + 1, \dots, p + k \text{ in } \Sigma")
MAX_ORDER = 4
"""Highest power of the residual (output minus label) in the covariance of the overlaps Q."""
PolynomialCovariance = Mapping[tuple[int, int, int], PolynomialTerms]
"""Type of a covariance: from powers of both learning rates and of the noise variance to polynomials in m, q and a."""


def noise_rows(setting: EquationSetting) -> tuple[Row, ...]:
    """Return the LaTeX rows of the covariance of M, Q and a, and the definitions of the symbols in these rows."""
    model, algorithm = setting.model, setting.algorithm
    if not isinstance(algorithm, OnePassSGD) or not model.network.plain:
        raise BadInput(
            "LaTeX of the noise is supported for one-pass SGD on two-layer networks only. Compute the "
            "covariance in numbers with problem.covariance."
        )
    closed = isinstance(choose_expectation(at_start(model)), Squares)
    return (
        NOISE_HEADING,
        *_sphere_rows(setting),
        *(_squares_rows(setting) if closed else _expectation_rows(setting)),
        INDEX_RANGES_ROW,
    )


COVARIANCE_SYMBOLS = {
    "MM": (r"\nu", "jrls"),
    "MQ": (r"\beta", "jrlm"),
    "QQ": (r"\eta", "jlmn"),
    "aM": (r"\mu", "jlr"),
    "aQ": (r"\xi", "jlm"),
    "aa": (r"\chi", "jl"),
}
"""LaTeX symbol and indices of each covariance of increments, before any projection to the sphere."""


def _covariance_letter(setting: EquationSetting, name: str) -> str:
    """Return the symbol of a covariance in LaTeX: Sigma off the sphere, else that of the increments before the projection."""
    letter, indices = COVARIANCE_SYMBOLS[name]
    projected = setting.algorithm.sphere and name != "aa"
    return f"{letter}_{{{indices}}}" if projected else rf"\Sigma^{{{name}}}_{{{indices}}}"


def _sphere_rows(setting: EquationSetting) -> list[Row]:
    """Return rows that express covariances on the sphere by those before norms are projected out; no rows off the sphere."""
    if not setting.algorithm.sphere:
        return []
    half, quarter = r"\frac{1}{2}", r"\frac{1}{4}"
    cross, own = lambda at: rf"\beta_{{{at}}}", lambda at: rf"\eta_{{{at}}}"
    W = lambda at: rf"\Omega_{{{at}}}"
    norms = [f"-{half} {W('ls')} {cross('jrll')}", f"-{half} {W('jr')} {cross('lsjj')}"]
    both = lambda first, second: bracket_latex(f"{first} + {second}")
    norms_M, norms_Q = both(r"\varphi_{jrll}", r"\varphi_{jrmm}"), both(r"\psi_{jlmm}", r"\psi_{jlnn}")
    rows = [
        Row(r"\Sigma^{MM}_{jrls}", sum_latex([r"\nu_{jrls}", *norms, f"{quarter} {W('jr')} {W('ls')} {own('jjll')}"])),
        Row(r"\Sigma^{MQ}_{jrlm}", rf"\varphi_{{jrlm}} - {half} {W('lm')} {norms_M}"),
        Row(r"\Sigma^{QQ}_{jlmn}", rf"\psi_{{jlmn}} - {half} {W('mn')} {norms_Q}"),
        Row(r"\varphi_{jrlm}", rf"{cross('jrlm')} - {half} {W('jr')} {own('jjlm')}"),
        Row(r"\psi_{jlmn}", f"{own('jlmn')} - {half} {W('jl')} {both(own('jjmn'), own('llmn'))}"),
    ]
    if setting.trains_second:
        norm = both(r"\xi_{jll}", r"\xi_{jmm}")
        rows.append(Row(r"\Sigma^{aM}_{jlr}", rf"\mu_{{jlr}} - {half} {W('lr')} \xi_{{jll}}"))
        rows.append(Row(r"\Sigma^{aQ}_{jlm}", rf"\xi_{{jlm}} - {half} {W('lm')} {norm}"))
    return rows


def _squares_rows(setting: EquationSetting) -> list[Row]:
    r"""Return the rows of the covariances of squared units, by :math:`D_{gh} = \mathrm{Cov}[D^gvv, D^hvv]`.

    With the residual :math:`D = v^\top Kv + \epsilon` of the fields v of covariance C, the label noise :math:`\epsilon` and
    :math:`U_b = 2^b(CK)^bC`, :math:`E[D^nvv^\top] = n!\sum\zeta_aU_b` and :math:`E[D^nvvvv] = n!\sum\zeta_aT_{bc}`, where the
    indices of each term add up to n, T is Wick's sum of three products of :math:`U_b` and :math:`U_c`, and :math:`\zeta_a` is
    the coefficient of :math:`s^a` in :math:`e^{\sum_b\theta_bs^b/b}`.
    """
    model, sigma = setting.model, variance_latex(setting.model)
    w, k = model.loss.weight, model.teachers
    R = np.asarray(model.target.readout.quadratic(k))
    equal = np.array_equal(R, np.diag(np.diagonal(R))) and np.ptp(np.diagonal(R)) == 0
    both = lambda left, right: (
        rf"\sum_{{u=1}}^{{p+k}} c_{{u}} {left.format('u')} {right.format('u')}"
        if equal
        else rf"\sum_{{u=1}}^{{p+k}} \sum_{{v=1}}^{{p+k}} K_{{uv}} {left.format('u')} {right.format('v')}"
    )
    trace = lambda b: (
        rf"\sum_{{u=1}}^{{p+k}} c_{{u}} U_{{{b}uu}}"
        if equal
        else rf"\sum_{{u=1}}^{{p+k}} \sum_{{v=1}}^{{p+k}} K_{{uv}} U_{{{b}uv}}"
    )
    pull = lambda one, other: rf"\left(g_{{{one}}} + g_{{{other}}}\right)"
    D = lambda g, h, indices: f"D_{{{g}{h}{indices}}}"
    rows = [
        Row(_covariance_letter(setting, "MM"), f"g_{{j}} g_{{l}} {D(1, 1, 'jrls')}"),
        Row(
            _covariance_letter(setting, "MQ"),
            sum_latex(
                [
                    f"g_{{j}} {pull('l', 'm')} {D(1, 1, 'jrlm')}",
                    product_latex(-1, "g_{j} g_{l} g_{m}", sigma, D(1, 2, "jrlm")),
                ]
            ),
        ),
        Row(
            _covariance_letter(setting, "QQ"),
            sum_latex(
                [
                    f"{pull('j', 'l')} {pull('m', 'n')} {D(1, 1, 'jlmn')}",
                    product_latex(-1, pull("j", "l"), "g_{m} g_{n}", sigma, D(1, 2, "jlmn")),
                    product_latex(-1, "g_{j} g_{l}", pull("m", "n"), sigma, D(2, 1, "jlmn")),
                    product_latex("g_{j} g_{l} g_{m} g_{n}", r"\sigma^{4}" if sigma else "", D(2, 2, "jlmn")),
                ]
            ),
        ),
    ]
    if setting.trains_second:
        rows += [
            Row(_covariance_letter(setting, "aM"), f"h g_{{l}} {D(1, 1, 'jjlr')}"),
            Row(
                _covariance_letter(setting, "aQ"),
                sum_latex(
                    [f"h {pull('l', 'm')} {D(1, 1, 'jjlm')}", product_latex(-1, "h g_{l} g_{m}", sigma, D(1, 2, "jjlm"))]
                ),
            ),
            Row(_covariance_letter(setting, "aa"), f"h^{{2}} {D(1, 1, 'jjll')}"),
            Row("h", product_latex(2 * w, r"\gamma_{2}", setting.mean_factor)),
        ]
    rows.append(Row("g_{j}", product_latex(4 * w, r"\gamma", "c_{j}")))
    if equal:
        rows.append(Row("c_{r}", product_latex(-float(R[0, 0]))))
    else:
        rows.append(Row(r"K = \begin{pmatrix} \mathrm{diag}(c) & 0 \\ 0 & -R \end{pmatrix}"))
    rows += [
        Row(f"D_{{{g}{h}mnuv}}", f"F_{{{g + h}mnuv}} - S_{{{g}mn}} S_{{{h}uv}}") for g, h in ((1, 1), (1, 2), (2, 1), (2, 2))
    ]
    for n in (2, 3, 4):
        groups = []
        for a in range(n, -1, -1):
            wick = sum_latex(f"T_{{{b}{n - a - b}mnuv}}" for b in range(n - a + 1))
            groups.append(product_latex(_series_letter(a), bracket_latex(wick) if a < n and a else wick))
        rows.append(Row(f"F_{{{n}mnuv}}", product_latex(math.factorial(n), bracket_latex(sum_latex(groups)))))
    rows.append(Row("T_{bcmnuv}", sum_latex(f"U_{{b{x}}} U_{{c{y}}}" for x, y in (("mn", "uv"), ("mu", "nv"), ("mv", "nu")))))
    rows.append(Row("S_{1mn}", sum_latex([f"{_series_letter(1)} U_{{0mn}}", "U_{1mn}"])))
    inner = sum_latex([f"{_series_letter(2)} U_{{0mn}}", f"{_series_letter(1)} U_{{1mn}}", "U_{2mn}"])
    rows.append(Row("S_{2mn}", product_latex(2, bracket_latex(inner))))
    rows.append(Row("U_{0mn}", product_latex(sigma, r"\Omega_{mn}")))
    rows += [
        Row(f"U_{{{b}mn}}", product_latex(2, both("U_{{0m{}}}", f"U_{{{{{b - 1}{{}}n}}}}"))) for b in range(1, MAX_ORDER + 1)
    ]
    for n in range(1, MAX_ORDER + 1):
        terms = sum_latex(product_latex(rf"\theta_{{{b}}}", _series_letter(n - b) if n > b else "") for b in range(1, n + 1))
        rows.append(Row(_series_letter(n), terms if n == 1 else product_latex(Fraction(1, n), bracket_latex(terms))))
    rows += [Row(rf"\theta_{{{b}}}", sum_latex([trace(b - 1), r"\Delta" if b == 2 else ""])) for b in range(1, MAX_ORDER + 1)]
    rows.append(Row(r"\Omega = \begin{pmatrix} Q & M \\ M^{\top} & P \end{pmatrix}, \quad b, c = 0, \dots, 4"))
    return rows


def _series_letter(n: int) -> str:
    """Return the LaTeX symbol of the n-th coefficient in the generating function of the residual; an empty string for n = 0."""
    return rf"\zeta_{{{n}}}" if n else ""


def _expectation_rows(setting: EquationSetting) -> list[Row]:
    """Return the rows of the covariances, as expectations over one sample without a closed form."""
    model, sigma = setting.model, variance_latex(setting.model)
    cov = lambda left, right: rf"\mathrm{{Cov}}\left[{left}, {right}\right]"
    fixed = lambda j, r: rf"G_{{{j}}} \lambda_{{{r}}}"

    def field(j: str, l: str) -> str:
        corrector = "" if model.has_inputs_at_means else product_latex(-1, r"\gamma", sigma, f"G_{{{j}}} G_{{{l}}}")
        return sum_latex([rf"G_{{{j}}} \lambda_{{{l}}}", rf"G_{{{l}}} \lambda_{{{j}}}", corrector])

    rows = [
        Row(_covariance_letter(setting, "MM"), rf"\gamma^{{2}} {cov(fixed('j', 'r'), fixed('l', 's'))}"),
        Row(_covariance_letter(setting, "MQ"), rf"\gamma^{{2}} {cov(fixed('j', 'r'), field('l', 'm'))}"),
        Row(_covariance_letter(setting, "QQ"), rf"\gamma^{{2}} {cov(field('j', 'l'), field('m', 'n'))}"),
    ]
    if setting.trains_second:
        own = lambda j: rf"\partial_{{a_{j}}} \ell"
        rows += [
            Row(_covariance_letter(setting, "aM"), rf"\gamma_{{2}} \gamma {cov(own('j'), fixed('l', 'r'))}"),
            Row(_covariance_letter(setting, "aQ"), rf"\gamma_{{2}} \gamma {cov(own('j'), field('l', 'm'))}"),
            Row(_covariance_letter(setting, "aa"), rf"\gamma_{{2}}^{{2}} {cov(own('j'), own('l'))}"),
        ]
    about = [
        Row("G_{j}", r"\partial_{\lambda_j} \ell(f, y)"),
        loss_row(model),
        network_row(setting),
        *label_rows(model),
        *law_rows(model),
    ]
    fields = Row(r"\lambda_{r} = \lambda^{*}_{r-p} \text{ for fixed directions}")
    return [*rows, *about, fields, Row(r"\Omega = \begin{pmatrix} Q & M \\ M^{\top} & P \end{pmatrix}")]


def single_unit_noise(setting: EquationSetting) -> tuple[Row, ...]:
    r"""Return the rows of the covariance of the overlaps m and q and the second layer a, for one polynomial unit and target.

    For squared units the rows are (53) to (55) of Escaping mediocrity. Every increment is a polynomial in the fields and in the
    label noise :math:`\epsilon`, whose second and fourth moments are :math:`\Delta` and :math:`3\Delta^2`.
    """
    algorithm, parts = setting.algorithm, single_unit_polynomials(setting)
    w, first, D, unit = 2 * parts.loss_weight, parts.output_slope, parts.residual, parts.unit
    x, y, m = ({(1, 0, 0): Fraction(1)}, {(0, 1, 0): Fraction(1)}, {(1, 0, 0): Fraction(1)})
    G = {
        0: linear_combination((w, multiply_polynomials(first, D))),
        1: linear_combination((w, first)),
    }  # by the power of the label noise
    residual = {0: D, 1: {(0, 0, 0): Fraction(1)}}
    scale = lambda one, factor, by: {
        n: linear_combination((factor, multiply_polynomials(terms, by))) for n, terms in one.items()
    }
    square: dict[int, Any] = defaultdict(dict)
    for (i, one), (j, other) in itertools.product(G.items(), G.items()):
        square[i + j] = linear_combination((1, square[i + j]), (1, multiply_polynomials(one, other)))
    increments: dict[str, list] = {
        "m": [((1, 0), scale(G, -1, y))],
        "q": [((1, 0), scale(G, -2, x)), ((2, 0), scale(square, parts.variance, {(0, 0, 0): Fraction(1)}))],
    }
    if setting.trains_second:
        increments["a"] = [((0, 1), scale(residual, -w, unit))]
    cov = lambda left, right: _increment_covariance(increments[left], increments[right], parts.variance, parts.rho)
    sphere = algorithm.sphere
    names = [each for each in increments if not (sphere and each == "q")]
    rows = [NOISE_HEADING]
    for position, left in enumerate(names):
        for right in names[position:]:
            found = cov(left, right)
            if sphere and left == "m":
                found = _add_covariances((1, found), (Fraction(-1, 2), _multiply_covariance(m, cov("q", right))))
                if right == "m":
                    found = _add_covariances(
                        (1, found),
                        (Fraction(-1, 2), _multiply_covariance(m, cov("m", "q"))),
                        (Fraction(1, 4), _multiply_covariance(m, m, cov("q", "q"))),
                    )
            rows.append(Row(rf"\Sigma^{{{left}{right}}}", _covariance_latex(found, sphere)))
    return tuple(rows)


def _increment_covariance(left: list, right: list, variance: Fraction, rho: Fraction) -> PolynomialCovariance:
    """Return the covariance of the increments `left` and `right`, by powers of the two learning rates and the noise variance.

    `variance` is the variance of the inputs, `rho` the squared norm of the fixed direction.
    """
    mean = lambda terms: gaussian_mean(terms, variance, rho)
    found: dict[tuple[int, int, int], Any] = defaultdict(dict)

    def add(key: tuple[int, int, int], factor: int, terms: PolynomialTerms) -> None:
        found[key] = linear_combination((1, found[key]), (factor, terms))

    # even moments of the standard normal law
    moment = lambda n: double_factorial(n - 1)
    for (g, one), (h, other) in itertools.product(left, right):
        rates = g[0] + h[0], g[1] + h[1]
        for (i, first), (j, second) in itertools.product(one.items(), other.items()):
            if (i + j) % 2 == 0:
                add((*rates, (i + j) // 2), moment(i + j), mean(multiply_polynomials(first, second)))
            if i % 2 == j % 2 == 0:
                add((*rates, (i + j) // 2), -moment(i) * moment(j), multiply_polynomials(mean(first), mean(second)))
    return {key: terms for key, terms in found.items() if terms}


def _multiply_covariance(*factors: Any) -> PolynomialCovariance:
    """Multiply a covariance, the last argument, by all polynomials that precede it in the list of arguments."""
    *by, last = factors
    for each in by:
        last = {key: multiply_polynomials(each, terms) for key, terms in last.items()}
    return last


def _add_covariances(*parts: tuple[Any, PolynomialCovariance]) -> PolynomialCovariance:
    """Return the linear combination of covariances, given as pairs of a factor and a covariance."""
    keys = {key for _, each in parts for key in each}
    found = {key: linear_combination(*((factor, each[key]) for factor, each in parts if key in each)) for key in keys}
    return {key: terms for key, terms in found.items() if terms}


def _covariance_latex(covariance: PolynomialCovariance, sphere: bool) -> str:
    """Format a covariance as LaTeX, by increasing powers of the learning rates and of the noise variance."""
    letters = lambda key: " ".join(
        each
        for each in (power_latex(r"\gamma", key[0]), power_latex(r"\gamma_{2}", key[1]), power_latex(r"\Delta", key[2]))
        if each
    )
    terms = ((key, with_unit_norm(each) if sphere else each) for key, each in sorted(covariance.items()))
    return sum_latex(polynomial_latex(each, letters(key)) for key, each in terms)
