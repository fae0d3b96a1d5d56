r"""LaTeX of sums of units with a squared loss: integrals over several fields, in closed form where one is known.

Students are numbered j, l = 1, ..., p and fixed directions r = p + 1, ..., p + k; m and n run over both. With the activation
s, the fields :math:`\lambda_n`, the label noise :math:`\epsilon`, and coefficients :math:`c_n` that are the second layer of
students and minus the weights of teachers, the residual is :math:`D = \sum_n c_n s(\lambda_n) + \epsilon`. With the gradient
:math:`G_j = 2wc_js'(\lambda_j)D` of the loss :math:`wD^2` all moments are sums over

.. math::
    I_{jmn} &= E[s'(\lambda_j)\,\lambda_m s(\lambda_n)], & J_{jlmn} &= E[s'(\lambda_j)s'(\lambda_l)s(\lambda_m)s(\lambda_n)], \\
    S_{jl} &= E[s'(\lambda_j)s'(\lambda_l)], & K_{mn} &= E[s(\lambda_m)s(\lambda_n)] .
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import singledispatch

import numpy as np

from sgdlimits.analysis.equations.base import (
    Row,
    arcsin_latex,
    bracket_latex,
    fraction_latex,
    number_latex,
    over_pi_latex,
    power_latex,
    product_latex,
    root_latex,
    sum_latex,
)
from sgdlimits.analysis.equations.frame import EquationSetting, MomentRows, variance_latex
from sgdlimits.analysis.equations.polynomial import derivative_means
from sgdlimits.analysis.equations.words import activation_latex, gram_rows, mean_latex
from sgdlimits.expectation.additive import choose_additive_integrals
from sgdlimits.expectation.gaussian import ErfIntegrals, PiecewiseLinearIntegrals, SmoothIntegrals, UnitIntegrals
from sgdlimits.model.activation import Polynomial

# LaTeX shared by several integrals
TWO_OVER_PI_LATEX, FOUR_OVER_PI_SQUARED_LATEX = r"\frac{2}{\pi}", r"\frac{4}{\pi^{2}}"
FIELD_INTEGRAL_LATEX = r"\Lambda_{{{}}}"
INTEGRAL_J_LATEX = mean_latex(r"s'(\lambda_{j}) s'(\lambda_{l}) s(\lambda_{m}) s(\lambda_{n})")
"""LaTeX of the integral J over the fields of four units, for units for which it has no closed form."""
INDEX_RANGE_LATEX = r"m, n = 1, \dots, p + k \text{ for both}"
FIELD_COVARIANCE_LATEX = r"\Omega = \begin{pmatrix} Q & M \\ M^{\top} & P \end{pmatrix}"


def additive_moments(setting: EquationSetting) -> MomentRows | None:
    """Return the moments of a model whose residual is a sum of units, as LaTeX; None if its integrals need quadrature."""
    model, w = setting.model, setting.model.loss.weight
    integrals = choose_additive_integrals(model)
    rows = None if integrals is None else integral_rows(integrals, setting)
    if rows is None:
        return None
    # the residual is a sum over students and teachers alike
    every = r"\sum_{n=1}^{p+k} c_{n}"
    weights = np.asarray(model.target.readout.weights(model.teachers))
    k = model.teachers
    # a mean of teachers needs no list of weights
    if np.all(weights == 1 / k):
        teachers = [Row("c_{r}", product_latex(-1, r"\frac{1}{k}") if k > 1 else "-1")]
    else:
        teachers = [Row("c_{r}", r"-\frac{1}{k} a^{*}_{r-p}"), Row(rf"a^{{*}} = {number_latex(k * weights)}")]
    both = r"\sum_{m=1}^{p+k} \sum_{n=1}^{p+k} c_{m} c_{n} J_{jlmn}"
    return MomentRows(
        product_latex(2 * w, "c_{j}", every, "I_{jrn}"),
        product_latex(2 * w, "c_{j}", every, "I_{jln}"),
        product_latex((2 * w) ** 2, "c_{j} c_{l}", bracket_latex(rf"{both} + \Delta S_{{jl}}")),
        product_latex(2 * w, setting.mean_factor, every, "K_{jn}"),
        (
            *rows,
            Row("c_{j}", setting.unit_factor("j")),
            *teachers,
            Row(FIELD_COVARIANCE_LATEX),
            *gram_rows(model),
            Row(INDEX_RANGE_LATEX),
        ),
        r"r = p + 1, \dots, p + k",
    )


def field_covariance(setting: EquationSetting) -> tuple[str, list[Row]]:
    r"""Return the letter for the covariance of the fields, and its definition unless it is :math:`\Omega` itself."""
    return (r"\Omega", []) if not variance_latex(setting.model) else ("C", [Row("C_{mn}", r"\sigma^{2} \Omega_{mn}")])


@singledispatch
def integral_rows(integrals: UnitIntegrals, setting: EquationSetting) -> list[Row] | None:
    """Return the lines of LaTeX that define the integrals I, J, S and K over several fields; None without a closed form.

    The docstring of the module defines the four; register a function for a new kind of integrals.
    """
    return None


@integral_rows.register
def _(integrals: ErfIntegrals, setting: EquationSetting) -> list[Row]:
    """Return the rows of the integrals for units erf(gx/sqrt 2), in Saad and Solla's closed form with a gain g per field."""
    # one gain for all students and one for all teachers
    gains = np.asarray(integrals.gains)
    student, teacher = float(gains[0]), float(gains[-1])
    same, C, rows = student == teacher, "C", []
    # 0.5 rather than 0.5000000000000001, from a gain 1/sqrt(2)
    square = float(f"{student**2:.14g}")
    variance = variance_latex(setting.model)
    if same and square == 1 and not variance:
        C, ratio, gain_product = r"\Omega", "", lambda j, l: ""
    elif same:
        rows.append(Row("C_{mn}", product_latex(square, variance, r"\Omega_{mn}")))
        ratio, gain_product = "", lambda j, l: number_latex(square)
    else:
        rows += [
            Row("C_{mn}", product_latex("g_{m} g_{n}", variance, r"\Omega_{mn}")),
            Row("g_{j}", number_latex(student)),
            Row("g_{r}", number_latex(teacher)),
        ]
        ratio, gain_product = r"\frac{g_{j}}{g_{m}}", lambda j, l: f"g_{{{j}}} g_{{{l}}}"
    c = lambda one, other: f"{C}_{{{one}{other}}}"
    plus, own = (lambda n: bracket_latex(f"1 + {c(n, n)}")), (lambda n: bracket_latex(rf"1 + B_{{jl{n}{n}}}"))
    both = bracket_latex(f"{c('j', 'm')} {c('l', 'n')} + {c('l', 'm')} {c('j', 'n')}")
    # terms of the covariance of two fields given those of students j and l
    ways = f"{plus('l')} {c('j', 'm')} {c('j', 'n')}", f"{plus('j')} {c('l', 'm')} {c('l', 'n')}", f"-{c('j', 'l')} {both}"
    observed, upper = sum_latex(ways), f"{plus('j')} {c('m', 'n')} - {c('j', 'm')} {c('j', 'n')}"
    lower, pair = (
        f"{plus('j')} {root_latex(FIELD_INTEGRAL_LATEX.format('jn'))}",
        fraction_latex(gain_product("j", "l") or "1", root_latex(FIELD_INTEGRAL_LATEX.format("jl"))),
    )
    angle = arcsin_latex(fraction_latex(c("m", "n"), root_latex(f"{plus('m')} {plus('n')}")))
    return [
        Row("I_{jmn}", product_latex(TWO_OVER_PI_LATEX, ratio, fraction_latex(upper, lower))),
        Row(
            "J_{jlmn}",
            product_latex(
                FOUR_OVER_PI_SQUARED_LATEX, pair, arcsin_latex(fraction_latex("B_{jlmn}", root_latex(f"{own('m')} {own('n')}")))
            ),
        ),
        Row("S_{jl}", product_latex(TWO_OVER_PI_LATEX, pair)),
        *([Row("K_{mn}", product_latex(TWO_OVER_PI_LATEX, angle))] if setting.trains_second else []),
        Row("B_{jlmn}", f"{c('m', 'n')} - {fraction_latex(observed, FIELD_INTEGRAL_LATEX.format('jl'))}"),
        Row(FIELD_INTEGRAL_LATEX.format("mn"), f"{plus('m')} {plus('n')} - {c('m', 'n')}^{{2}}"),
        *rows,
    ]


@integral_rows.register
def _(integrals: PiecewiseLinearIntegrals, setting: EquationSetting) -> list[Row]:
    r"""Return the rows of the integrals for units :math:`s(x) = ux + v|x|`, as arc-cosine kernels.

    The integral J of two different students has no closed form and remains an expectation.
    """
    (odd, other_odd), (even, other_even) = (
        (float(part[0]), float(part[-1])) for part in map(np.asarray, (integrals.odd, integrals.even))
    )
    C, rows = field_covariance(setting)
    c = lambda one, other: f"{C}_{{{one}{other}}}"
    same = (odd, even) == (other_odd, other_even)
    pair = lambda letter, value: lambda m, n: number_latex(value**2) if same else f"{letter}_{{{m}}} {letter}_{{{n}}}"
    odds, evens = pair("u", odd), pair("v", even)
    both = lambda m, n: over_pi_latex(2 * even**2) if same else f"{TWO_OVER_PI_LATEX} {evens(m, n)}"
    mixed = bracket_latex("L_{jmn} + L_{jnm}" if same else "u_{m} v_{n} L_{jmn} + u_{n} v_{m} L_{jnm}")
    # relu and abs: u v = 1/4 or 0, and terms with a factor 0 are left out
    crossed = 2 * (odd * even) ** 2 if same else 2 * odd * even
    if not same:
        values = {"u_{j}": odd, "v_{j}": even, "u_{r}": other_odd, "v_{r}": other_even}
        rows = [*rows, *(Row(letter, number_latex(value)) for letter, value in values.items())]
    J = [
        Row(
            "J_{jjmn}", sum_latex([product_latex(odd**2 + even**2, "K_{mn}"), product_latex(crossed, mixed) if crossed else ""])
        )
    ]
    if setting.model.width > 1:
        J += [Row("J_{jlmn}", INTEGRAL_J_LATEX), Row("s(x)", activation_latex(setting.model.network.activation))]
    by = lambda factor, body: "" if factor == "0" else body if factor == "1" else f"{factor} {body}"
    wedge = bracket_latex(rf"R_{{mn}} + {c('m', 'n')} \theta_{{mn}}")
    along = bracket_latex(fraction_latex(f"{c('j', 'm')} R_{{jn}}", c("j", "j")) + rf" + {c('m', 'n')} \theta_{{jn}}")
    return [
        Row("I_{jmn}", sum_latex([by(odds("j", "n"), c("m", "n")), by(evens("j", "n"), "L_{jmn}")])),
        *J,
        Row("S_{jl}", sum_latex(["" if odds("j", "l") == "0" else odds("j", "l"), rf"{both('j', 'l')} \theta_{{jl}}"])),
        Row("K_{mn}", sum_latex([by(odds("m", "n"), c("m", "n")), f"{both('m', 'n')} {wedge}"])),
        Row("L_{jmn}", f"{TWO_OVER_PI_LATEX} {along}"),
        Row("R_{mn}", root_latex(f"{c('m', 'm')} {c('n', 'n')} - {c('m', 'n')}^{{2}}")),
        Row(r"\theta_{mn}", arcsin_latex(fraction_latex(c("m", "n"), root_latex(f"{c('m', 'm')} {c('n', 'n')}")))),
        *rows,
    ]


@integral_rows.register
def _(integrals: SmoothIntegrals, setting: EquationSetting) -> list[Row] | None:
    r"""Return the rows of the integrals for polynomial units, by Mehler's formula; J remains an expectation.

    For functions f and g of two Gaussian fields of covariance C it is :math:`E[fg] = \sum_q C^q/q!\; E[f^{(q)}]E[g^{(q)}]`.
    """
    student, teacher = setting.model.network.activation, getattr(setting.model.target.readout, "activation", None)
    # other smooth activations have integrals by quadrature only
    if not integrals.is_exact or not (isinstance(student, Polynomial) and isinstance(teacher, Polynomial)):
        return None
    C, rows = field_covariance(setting)
    c = lambda one, other: f"{C}_{{{one}{other}}}"
    # one sum for all pairs: surplus terms have vanishing means
    degree = max(student.degree, teacher.degree)

    return [
        Row("I_{jmn}", rf"{c('j', 'm')} T_{{jn}} + {c('m', 'n')} S_{{jn}}"),
        Row("J_{jlmn}", INTEGRAL_J_LATEX),
        Row("S_{mn}", _mehler_sum(c, degree, 1, 1)),
        Row("T_{mn}", _mehler_sum(c, degree, 2, 0)),
        *([Row("K_{mn}", _mehler_sum(c, degree, 0, 0))] if setting.trains_second else []),
        *derivative_means(student, teacher, C),
        *rows,
    ]


def _mehler_sum(c: Callable[[str, str], str], degree: int, up_m: int, up_n: int) -> str:
    """Format the Gaussian mean of a product of two units' derivatives as a sum over powers of their fields' covariance.

    `c` gives the LaTeX of the covariance of two fields, `degree` is the highest power, and `up_m` and `up_n` are the orders of
    the two derivatives.
    """
    h = lambda index, order: f"h_{{{order}{index}}}"
    return sum_latex(
        product_latex(1 / math.factorial(q), power_latex(c("m", "n"), q), h("m", q + up_m), h("n", q + up_n))
        for q in range(degree + 1 - max(up_m, up_n))
    )
