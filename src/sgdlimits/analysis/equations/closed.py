"""The moments of one sample as LaTeX, for each kind of expectation."""

from __future__ import annotations

from functools import singledispatch

import numpy as np

from sgdlimits.analysis.equations.base import (
    Row,
    bracket_latex,
    fraction_latex,
    number_latex,
    product_latex,
    reciprocal_latex,
    sum_latex,
)
from sgdlimits.analysis.equations.frame import EquationSetting, MomentRows, variance_latex
from sgdlimits.analysis.equations.units import additive_moments
from sgdlimits.analysis.equations.words import (
    activation_equations,
    class_rows,
    dropout_rows,
    label_rows,
    law_rows,
    loss_row,
    mean_latex,
    network_row,
)
from sgdlimits.expectation import AtMeans, Expectation, FieldIntegrals, Squares


@singledispatch
def closed_form_moments(expectation: Expectation, setting: EquationSetting) -> MomentRows:
    """Return the moments of one sample as LaTeX, in closed form where the kind of expectation allows it."""
    model = setting.model
    where = [
        Row("G_{j}", r"\partial_{\lambda_j} \ell(f, y)"),
        loss_row(model),
        network_row(setting),
        *dropout_rows(model),
        *label_rows(model),
        *law_rows(model),
    ]
    return MomentRows(
        mean_latex(r"G_{j} \lambda^{*}_{r}"),
        mean_latex(r"G_{j} \lambda_{l}"),
        "" if model.has_inputs_at_means else mean_latex("G_{j} G_{l}"),
        mean_latex(r"\partial_{a_j} \ell(f, y)") if model.network.plain else "",
        tuple(where),
    )


@closed_form_moments.register
def _(expectation: FieldIntegrals, setting: EquationSetting) -> MomentRows:
    # integrals known by quadrature only: fall back to named expectations
    return additive_moments(setting) or closed_form_moments.dispatch(Expectation)(expectation, setting)


@closed_form_moments.register
def _(expectation: Squares, setting: EquationSetting) -> MomentRows:
    r"""Return the moments of squared units: Gaussian moments of fields times a residual quadratic in the fields.

    With the residual :math:`D = v^\top Kv`, a quadratic form of the fields v with covariance :math:`C = \sigma^2\Omega`,

    .. math:: E[Dvv^\top] = \mathrm{tr}(KC)\,C + 2CKC, \qquad
              E[D^2vv^\top] = E[D^2]\,C + 4\,\mathrm{tr}(KC)\,CKC + 8\,CKCKC .

    In the equations X and Y are blocks of :math:`\Omega K\Omega`, and Z is a block of :math:`\Omega K\Omega K\Omega`.
    """
    model, k = setting.model, setting.model.teachers
    w, R, P = model.loss.weight, np.asarray(model.target.readout.quadratic(k)), np.asarray(model.target.gram)
    equal = np.allclose(R, np.eye(k) / k, rtol=1e-14) and np.array_equal(P, np.eye(k))
    two = variance_latex(model)
    four = two and r"\sigma^{4}"

    def fixed(left: str, right: str, factor: float = -1.0, before: str = "") -> str:
        """Return the LaTeX of the sum over fixed directions s and u of the readout's entry R_su times `left` and `right`."""
        if equal:  # R = 1/k: a single sum
            last = [f"{left}^{{2}}"] if left == right.replace("u", "s") else [left, right.replace("u", "s")]
            share = (
                reciprocal_latex("k", k)
                if factor == -1
                else fraction_latex(number_latex(-factor), "k")
                if k > 1
                else number_latex(-factor)
            )
            return product_latex(-1, share, before, r"\sum_{s=1}^{k}", *last)
        return product_latex(factor, before, r"\sum_{s=1}^{k} \sum_{u=1}^{k}", left, "R_{su}", right)

    students = lambda body: rf"\sum_{{m=1}}^{{p}} c_{{m}} {body}"
    pairs = r"\sum_{m=1}^{p} \sum_{n=1}^{p} c_{m} c_{n} Q_{mn}^{2}"
    # E[D^2] without noise is tau^2 + 2 kappa, in units of sigma^4
    spread = product_latex(four, bracket_latex(r"\tau^{2} + 2 \kappa")) if four else r"\tau^{2} + 2 \kappa"
    where = [
        Row(r"\tau", sum_latex([students("Q_{mm}"), product_latex(-float((R * P).sum()))])),
        Row("X_{jl}", sum_latex([students("Q_{jm} Q_{ml}"), fixed("M_{js}", "M_{lu}")])),
        Row(
            "Y_{jr}",
            sum_latex(
                [
                    students("Q_{jm} M_{mr}"),
                    product_latex(-1, reciprocal_latex("k", k), "M_{jr}") if equal else fixed("M_{js}", "P_{ur}"),
                ]
            ),
        ),
        Row("Z_{jl}", sum_latex([students("X_{jm} Q_{ml}"), fixed("Y_{js}", "M_{lu}")])),
        Row(r"\varepsilon", sum_latex([spread, r"\Delta"])),
        Row(
            r"\kappa",
            sum_latex([pairs, fixed("M_{ms}", "M_{mu}", -2.0, r"\sum_{m=1}^{p} c_{m}"), number_latex(np.trace(R @ P @ R @ P))]),
        ),
        Row("c_{j}", setting.unit_factor("j")),
    ]
    if not equal:
        where.append(Row(rf"R = {number_latex(R)}, \quad P = {number_latex(P)}"))
    step = lambda first, second: bracket_latex(rf"\tau {first} + 2 {second}")
    corrector = sum_latex([r"\varepsilon Q_{jl}", product_latex(4, four, r"\tau X_{jl}"), product_latex(8, four, "Z_{jl}")])
    return MomentRows(
        product_latex(4 * w, four, "c_{j}", step("M_{jr}", "Y_{jr}")),
        product_latex(4 * w, four, "c_{j}", step("Q_{jl}", "X_{jl}")),
        product_latex((4 * w) ** 2, two, "c_{j} c_{l}", bracket_latex(corrector)),
        product_latex(2 * w, four, setting.mean_factor, step("Q_{jj}", "X_{jj}")),
        tuple(where),
    )


@closed_form_moments.register
def _(expectation: AtMeans, setting: EquationSetting) -> MomentRows:
    """Return the moments as sums over classes, for inputs without variance: each input equals the mean of its class."""
    model = setting.model
    C = r"\sum_{c=1}^{" + str(model.classes) + r"} \pi_{c}"
    slope = r"\left(\frac{1}{1 + e^{-f_{c}}} - y_{c}\right)"
    layer = setting.unit_factor("j")
    where = [
        Row("G_{jc}", product_latex(layer if layer != "1" else "", r"s'(\lambda_{jc})", slope)),
        Row("f_{c}", rf"\sum_{{m=1}}^{{p}} {setting.unit_factor('m')} s(\lambda_{{mc}})"),
        Row(r"\lambda_{jc}", r"\sum_{s=1}^{k} M_{js} b_{cs}"),
        *activation_equations(model.network.activation),
        *class_rows(model),
    ]
    # P = 1 leaves no sum over fixed directions
    orthonormal = np.array_equal(np.asarray(model.target.gram), np.eye(model.teachers))
    fixed = "b_{cr}" if orthonormal else r"\sum_{s=1}^{k} P_{rs} b_{cs}"
    return MomentRows(
        rf"{C} G_{{jc}} {fixed}",
        rf"{C} G_{{jc}} \lambda_{{lc}}",
        "",
        product_latex(setting.mean_factor, rf"{C} s(\lambda_{{jc}}) {slope}"),
        tuple(where),
    )
