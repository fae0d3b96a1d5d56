"""Which form an ODE has: closed where the model's expectations are, general otherwise."""

from __future__ import annotations

from sgdlimits.algorithm.base import Algorithm
from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.analysis.equations.base import Equations, Row, over, rate, times
from sgdlimits.analysis.equations.closed import closed_form
from sgdlimits.analysis.equations.frame import EquationSetting, of_sgd, parameters
from sgdlimits.analysis.equations.polynomial import is_one_by_one, one_by_one
from sgdlimits.analysis.equations.words import dropout, label, law, loss, mean, network
from sgdlimits.expectation import choose
from sgdlimits.model.sample import Model
from sgdlimits.part import at_start
from sgdlimits.text import among


def of_model(model: Model, algorithm: Algorithm, constant: float | None) -> Equations:
    """The ODE of a model under the limit of an algorithm; `constant` is the second layer, where it stays at one number."""
    setting = EquationSetting(model, algorithm.limit, constant)
    if not isinstance(setting.algorithm, OnePassSGD):
        return of_any(setting)
    if is_one_by_one(setting):
        return one_by_one(setting)
    return of_sgd(setting, closed_form(choose(at_start(model)), setting))


def of_any(setting: EquationSetting) -> Equations:
    r"""Steps :math:`W \leftarrow (1 + A_1/d)W + (\hat C/d)X` of any algorithm: see `sgdlimits.algorithm.limit`."""
    model, algorithm = setting.model, setting.algorithm
    change = r"A_1 Q + Q A_1^{\top} + \hat{C} \lambda^{\top} + \lambda \hat{C}^{\top} + \hat{C} K \hat{C}^{\top}"
    share = over("b", algorithm.batch)
    half = r"\tfrac{1}{2} M_{jr} \dot Q_{jj} \text{ and } \tfrac{1}{2} Q_{jl} (\dot Q_{jj} + \dot Q_{ll})"
    ode = Row(rate("M"), times(share, mean(r"A_1 M + \hat{C} \lambda^{*\top}"))), Row(rate("Q"), times(share, mean(change)))
    step = r"W \leftarrow \left(1 + \tfrac{1}{d} A_1\right) W + \tfrac{1}{d} \hat{C} X"
    gram = r"K = \lim_{d \to \infty} \tfrac{1}{d} X X^{\top}"
    where = (
        Row(rf"{step} \text{{ is a step of {type(algorithm).__name__},}} \quad {gram}"),
        Row(
            rf"\text{{rows of }} W \text{{, }} M \text{{ and }} Q \text{{ for {among(algorithm.names)}; inputs as rows of }} X"
        ),
        *([Row(rf"\text{{on the sphere less }} {half}")] if algorithm.sphere else []),
        *([Row("b", str(algorithm.batch))] if share else []),
        loss(model),
        network(setting),
        *dropout(model),
        *label(model),
        *law(model),
    )
    return Equations(ode, where, parameters(setting))
