"""Choice of the form of an ODE: explicit if the model's expectations are known in closed form, else with named expectations."""

from __future__ import annotations

from sgdlimits.algorithm.base import Algorithm
from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.analysis.equations.base import Equations, Row, product_latex, reciprocal_latex, time_derivative_latex
from sgdlimits.analysis.equations.closed import closed_form_moments
from sgdlimits.analysis.equations.frame import EquationSetting, list_parameters, sgd_equations
from sgdlimits.analysis.equations.noise import noise_rows, single_unit_noise
from sgdlimits.analysis.equations.polynomial import is_single_unit, single_unit_equations
from sgdlimits.analysis.equations.words import dropout_rows, label_rows, law_rows, loss_row, mean_latex, network_row
from sgdlimits.expectation import choose_expectation
from sgdlimits.model.sample import Model
from sgdlimits.part import at_start
from sgdlimits.text import join_words


def choose_noise_equations(model: Model, algorithm: Algorithm, constant: float | None) -> tuple[Row, ...]:
    """Return the covariance of the increments of a model under plain SGD, in LaTeX.

    `constant` is the value of the second layer if it is fixed and equal for all units, else None.
    """
    setting = EquationSetting(model, algorithm.limit, constant)
    if isinstance(setting.algorithm, OnePassSGD) and is_single_unit(setting):
        return single_unit_noise(setting)
    return noise_rows(setting)


def choose_equations(model: Model, algorithm: Algorithm, constant: float | None) -> Equations:
    """Return the LaTeX of the ODE of a model trained by an algorithm, explicit where expectations have a closed form.

    `constant` is the value of the second layer if it is fixed and equal for all units, else None.
    """
    setting = EquationSetting(model, algorithm.limit, constant)
    if not isinstance(setting.algorithm, OnePassSGD):
        return general_equations(setting)
    # polynomials in two overlaps, shorter than the general sums
    if is_single_unit(setting):
        return single_unit_equations(setting)
    return sgd_equations(setting, closed_form_moments(choose_expectation(at_start(model)), setting))


def general_equations(setting: EquationSetting) -> Equations:
    r"""Return the ODE in LaTeX of any algorithm with steps :math:`W \leftarrow (1 + A_1/d)W + (\hat C/d)X`.

    W are the weights and X the inputs of a batch; expectations over a batch are named, not evaluated. The matrices
    :math:`A_1` and :math:`\hat C` are defined in `sgdlimits.algorithm.limit`.
    """
    model, algorithm = setting.model, setting.algorithm
    change = r"A_1 Q + Q A_1^{\top} + \hat{C} \lambda^{\top} + \lambda \hat{C}^{\top} + \hat{C} K \hat{C}^{\top}"
    share = reciprocal_latex("b", algorithm.batch)
    half = r"\tfrac{1}{2} M_{jr} \dot Q_{jj} \text{ and } \tfrac{1}{2} Q_{jl} (\dot Q_{jj} + \dot Q_{ll})"
    ode = (
        Row(time_derivative_latex("M"), product_latex(share, mean_latex(r"A_1 M + \hat{C} \lambda^{*\top}"))),
        Row(time_derivative_latex("Q"), product_latex(share, mean_latex(change))),
    )
    step = r"W \leftarrow \left(1 + \tfrac{1}{d} A_1\right) W + \tfrac{1}{d} \hat{C} X"
    gram = r"K = \lim_{d \to \infty} \tfrac{1}{d} X X^{\top}"
    where = (
        Row(rf"{step} \text{{ is a step of {type(algorithm).__name__},}} \quad {gram}"),
        Row(
            r"\text{rows of } W \text{, } M \text{ and } Q "
            rf"\text{{ for {join_words(algorithm.names)}; inputs as rows of }} X"
        ),
        *([Row(rf"\text{{on the sphere less }} {half}")] if algorithm.sphere else []),
        *([Row("b", str(algorithm.batch))] if share else []),
        loss_row(model),
        network_row(setting),
        *dropout_rows(model),
        *label_rows(model),
        *law_rows(model),
    )
    return Equations(ode, where, list_parameters(setting))
