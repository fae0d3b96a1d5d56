"""The parts of a model as LaTeX: activations, losses, networks, labels and the law of the fields."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from sgdlimits.equations.base import Row, number, over, spelt, times, total
from sgdlimits.equations.frame import Setting, has_noise, one
from sgdlimits.errors import is_traced
from sgdlimits.model.activation import ACTIVATIONS, Activation, Erf, FunctionActivation, PiecewiseLinear, Polynomial
from sgdlimits.model.loss import CrossEntropy, FunctionLoss, Loss, SoftmaxCrossEntropy, SquaredLoss
from sgdlimits.model.network import TwoLayer
from sgdlimits.model.sample import Model
from sgdlimits.model.target import ClassLabels, CommitteeReadout, FunctionReadout, QuadraticReadout, Readout


def mean(inside: str) -> str:
    """An expectation over one sample."""
    return rf"\mathbb{{E}}\left[{inside}\right]"


def called(fn: Any) -> str:
    """A function of a user by its name, or a letter where it has none."""
    name = getattr(fn, "__name__", type(fn).__name__)
    return rf"\operatorname{{{spelt(name)}}}" if name.isidentifier() else ""


# --- activations -------------------------------------------------------------------------------------------------------------


@singledispatch
def any_unit(activation: Activation, x: str = "x") -> str:
    """An activation of a letter."""
    return rf"{called(getattr(activation, 'fn', activation)) or 's'}({x})"


@any_unit.register
def _(activation: FunctionActivation, x: str = "x") -> str:
    if activation == ACTIVATIONS["tanh"]:
        return rf"\tanh({x})"
    if activation == ACTIVATIONS["sigmoid"]:
        return rf"\frac{{1}}{{1 + e^{{-{x}}}}}"
    return rf"{called(activation.fn) or 's'}({x})"


@any_unit.register
def _(activation: Erf, x: str = "x") -> str:
    inside = rf"{x}/\sqrt{{2}}" if activation == ACTIVATIONS["erf"] else times(activation.scale, x)
    return rf"\operatorname{{erf}}({inside})"


@any_unit.register
def _(activation: PiecewiseLinear, x: str = "x") -> str:
    if (activation.left, activation.right) == (0.0, 1.0):
        return rf"\max(0, {x})"
    odd, even = (activation.right + activation.left) / 2, (activation.right - activation.left) / 2
    return total([times(odd, x) if odd else "", times(even, f"|{x}|") if even else ""])


@any_unit.register
def _(activation: Polynomial, x: str = "x") -> str:
    base = f"({x})" if "^" in x else x
    power = lambda n: "" if n == 0 else x if n == 1 else rf"{base}^{{{n}}}"
    terms = [times(c, power(n)) for n, c in enumerate(activation.coefficients) if c]
    return total(terms[::-1])


def units(activation: Activation) -> list[Row]:
    """What a unit does, and its slope where that is short."""
    rows = [Row("s(x)", any_unit(activation))]
    if isinstance(activation, PiecewiseLinear):
        step = activation.right - activation.left
        rows.append(
            Row("s'(x)", total([times(activation.left) if activation.left else "", times(step, r"\theta(x)") if step else ""]))
        )
        if step:
            rows.append(Row(r"\theta(x) = 1 \text{ for } x > 0 \text{ and } 0 \text{ otherwise}"))
    return rows


# --- losses, networks, labels ------------------------------------------------------------------------------------------------


@singledispatch
def any_loss(loss: Loss) -> str:
    """A loss of f and y."""
    return rf"\operatorname{{{spelt(type(loss).__name__)}}}(f, y)"


@any_loss.register
def _(loss: SquaredLoss) -> str:
    return times(loss.weight, r"\left(f - y\right)^{2}")


@any_loss.register
def _(loss: CrossEntropy) -> str:
    return r"\log\left(1 + e^{f}\right) - y f"


@any_loss.register
def _(loss: SoftmaxCrossEntropy) -> str:
    return r"\log \sum_{o} e^{f_{o}} - f_{y}"


@any_loss.register
def _(loss: FunctionLoss) -> str:
    return rf"{called(loss.fn) or 'L'}(f, y)"


def loss(model: Model) -> Row:
    """The loss."""
    return Row(r"\ell(f, y)", any_loss(model.loss))


def network(setting: Setting) -> Row:
    """The prediction."""
    net = setting.model.network
    if not isinstance(net, TwoLayer):
        return Row("f", rf"{called(getattr(net, 'fn', None)) or 'f'}(\lambda_{{1}}, \dots, \lambda_{{p}})")
    unit = any_unit(net.activation, r"\lambda_{m}")
    if net.plain:
        layer = setting.layer("m")
        before, after = (layer, "") if setting.constant is not None else ("", layer)
        return Row("f", times(before if before != "1" else "", r"\sum_{m=1}^{p}", after, unit))
    output = "_{o}" if net.shape else ""
    weight = "a_{mo}" if net.shape else "a_{m}"
    bias = rf" + \text{{bias}}{output}" if net.bias else ""
    return Row(f"f{output}", times(setting.share, r"\sum_{m=1}^{p}", weight, unit) + bias)


@singledispatch
def any_label(readout: Readout, k: int) -> str:
    """A label without its noise."""
    return rf"\operatorname{{{spelt(type(readout).__name__)}}}(\lambda^{{*}})"


@any_label.register
def _(readout: CommitteeReadout, k: int) -> str:
    weight = "" if readout.second is None else "a^{*}_{r}"
    if k == 1:
        return times(weight, any_unit(readout.activation, r"\lambda^{*}_{1}"))
    return times(over("k", k), r"\sum_{r=1}^{k}", weight, any_unit(readout.activation, r"\lambda^{*}_{r}"))


@any_label.register
def _(readout: QuadraticReadout, k: int) -> str:
    return r"\sum_{r=1}^{k} \sum_{s=1}^{k} R_{rs} \lambda^{*}_{r} \lambda^{*}_{s}"


@any_label.register
def _(readout: FunctionReadout, k: int) -> str:
    return rf"{called(readout.fn) or 'g'}(\lambda^{{*}}_{{1}}, \dots, \lambda^{{*}}_{{k}})"


@any_label.register
def _(readout: ClassLabels, k: int) -> str:
    return "y_{c}"


def label(model: Model) -> list[Row]:
    """The label, and the numbers in it."""
    readout = model.target.readout
    noise = r"\sqrt{\Delta} z" if has_noise(model) else ""
    rows = [Row("y", total([any_label(readout, model.teachers), noise]))]
    if isinstance(readout, CommitteeReadout) and readout.second is not None and not is_traced(readout.second):
        rows.append(Row(rf"a^{{*}} = {number(readout.second)}"))
    if isinstance(readout, QuadraticReadout) and not is_traced(readout.R):
        rows.append(Row(rf"R = {number(readout.R)}"))
    return rows


# --- the law of the fields ---------------------------------------------------------------------------------------------------


def law(model: Model) -> list[Row]:
    """The law of the fields, and of the noise in labels."""
    sigma = "" if one(model.data.sigma) else r"\sigma^{2} "
    omega = r"\begin{pmatrix} Q & M \\ M^{\top} & P \end{pmatrix}"
    both = r"(\lambda, \lambda^{*})"
    noise = [Row(r"z \sim N(0, 1)")] if has_noise(model) else []
    if model.data.centred:
        return [Row(rf"{both} \sim N\left(0, {sigma}{omega}\right)"), *noise, *gram(model)]
    middle = r"\begin{pmatrix} M b_{c} \\ P b_{c} \end{pmatrix}"
    given = rf"{both} \sim N\left({middle}, {sigma}{omega}\right) \text{{ for class }} c \text{{, of probability }} \pi_{{c}}"
    return [Row(given), *noise, *class_numbers(model)]


def gram(model: Model) -> list[Row]:
    """The Gram matrix of the fixed directions."""
    P = model.target.gram
    if is_traced(P):
        return []
    return [Row("P = I" if np.array_equal(P, np.eye(len(P))) else rf"P = {number(P)}")]


def class_numbers(model: Model) -> list[Row]:
    """Probabilities, means and labels of the classes, and the Gram matrix of the fixed directions."""
    data, labels = model.data, getattr(model.target.readout, "labels", None)
    if any(map(is_traced, (data.weights, data.means, labels))):
        return []
    y = "" if labels is None else rf", \quad y = {number(labels)}"
    return [Row(rf"\pi = {number(data.weights)}, \quad b = {number(data.means)}{y}"), *gram(model)]
