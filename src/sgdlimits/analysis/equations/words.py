"""The parts of a model as LaTeX: activations, losses, networks, labels and the law of the fields."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgdlimits.analysis.equations.base import (
    Row,
    escape_latex,
    number_latex,
    power_latex,
    product_latex,
    reciprocal_latex,
    sum_latex,
)
from sgdlimits.analysis.equations.frame import EquationSetting, has_noise, variance_latex
from sgdlimits.analysis.equations.schedules import schedule_latex
from sgdlimits.errors import is_traced
from sgdlimits.model.activation import ACTIVATIONS, Activation, Erf, PiecewiseLinear, Polynomial
from sgdlimits.model.loss import CrossEntropy, FunctionLoss, SoftmaxCrossEntropy, SquaredLoss
from sgdlimits.model.network import TwoLayer
from sgdlimits.model.sample import Model
from sgdlimits.model.target import ClassLabels, CommitteeReadout, FunctionReadout, QuadraticReadout, TimedReadout
from sgdlimits.model.tasks import ClassReadouts
from sgdlimits.part import is_schedule


def mean_latex(inside: str) -> str:
    """Format the expectation of a LaTeX expression over one sample."""
    return rf"\mathbb{{E}}\left[{inside}\right]"


def function_name(fn: Any) -> str:
    """Return the name of a user's function as LaTeX, or an empty string for a function without a name."""
    name = getattr(fn, "__name__", type(fn).__name__)
    return rf"\operatorname{{{escape_latex(name)}}}" if name.isidentifier() else ""


# --- activations -------------------------------------------------------------------------------------------------------------


def activation_latex(activation: Activation, x: str = "x") -> str:
    """Format an activation as LaTeX, as a function of the variable `x`."""
    match activation:
        case Erf(scale=scale):
            inside = rf"{x}/\sqrt{{2}}" if activation == ACTIVATIONS["erf"] else product_latex(scale, x)
            return rf"\operatorname{{erf}}({inside})"
        case PiecewiseLinear(left=0.0, right=1.0):
            return rf"\max(0, {x})"
        case PiecewiseLinear(left=left, right=right):
            odd, even = (right + left) / 2, (right - left) / 2
            return sum_latex([product_latex(odd, x) if odd else "", product_latex(even, f"|{x}|") if even else ""])
        case Polynomial(coefficients=coefficients):
            # (lambda^*)^2 needs its brackets
            base = f"({x})" if "^" in x else x
            return sum_latex(
                [product_latex(c, power_latex(x if n == 1 else base, n)) for n, c in enumerate(coefficients) if c][::-1]
            )
    if activation == ACTIVATIONS["tanh"]:
        return rf"\tanh({x})"
    if activation == ACTIVATIONS["sigmoid"]:
        return rf"\frac{{1}}{{1 + e^{{-{x}}}}}"
    return rf"{function_name(getattr(activation, 'fn', activation)) or 's'}({x})"


def activation_equations(activation: Activation) -> list[Row]:
    """Return the lines of LaTeX that define an activation and, if it is piecewise linear, its derivative."""
    rows = [Row("s(x)", activation_latex(activation))]
    if isinstance(activation, PiecewiseLinear):
        step = activation.right - activation.left
        rows.append(
            Row(
                "s'(x)",
                sum_latex(
                    [
                        product_latex(activation.left) if activation.left else "",
                        product_latex(step, r"\theta(x)") if step else "",
                    ]
                ),
            )
        )
        if step:
            rows.append(Row(r"\theta(x) = 1 \text{ for } x > 0 \text{ and } 0 \text{ otherwise}"))
    return rows


# --- losses, networks, labels ------------------------------------------------------------------------------------------------


def loss_row(model: Model) -> Row:
    """Return the line of LaTeX that defines the loss of a model."""
    match model.loss:
        case SquaredLoss(weight=weight):
            text = product_latex(weight, r"\left(f - y\right)^{2}")
        case CrossEntropy():
            text = r"\log\left(1 + e^{f}\right) - y f"
        case SoftmaxCrossEntropy():
            text = r"\log \sum_{o} e^{f_{o}} - f_{y}"
        case FunctionLoss(fn=fn):
            text = rf"{function_name(fn) or 'L'}(f, y)"
        case other:
            text = rf"{function_name(type(other))}(f, y)"
    return Row(r"\ell(f, y)", text)


def network_row(setting: EquationSetting) -> Row:
    """Return the line of LaTeX that defines the network's prediction f."""
    net = setting.model.network
    if not isinstance(net, TwoLayer):
        return Row("f", rf"{function_name(getattr(net, 'fn', None)) or 'f'}(\lambda_{{1}}, \dots, \lambda_{{p}})")
    unit = activation_latex(net.activation, r"\lambda_{m}")
    # a plain network is a sum of units without bias or several outputs
    if net.plain:
        layer = setting.unit_factor("m")
        before, after = (layer, "") if setting.constant is not None else ("", layer)
        return Row("f", product_latex(before if before != "1" else "", r"\sum_{m=1}^{p}", after, unit))
    column = "o" if net.shape else "c" if net.heads > 1 else ""
    output, weight = f"_{{{column}}}" if column else "", f"a_{{m{column}}}"
    bias = rf" + \text{{bias}}{output}" if net.bias else ""
    mask = "" if net.dropout is None else r"\tfrac{\chi_{m}}{1 - q}"
    return Row(f"f{output}", product_latex(setting.mean_factor, r"\sum_{m=1}^{p}", weight, mask, unit) + bias)


def dropout_rows(model: Model) -> list[Row]:
    """Return the line of LaTeX with the law of the dropout masks; no line without dropout."""
    rate = model.network.mask_rate
    if rate is None:
        return []
    q = "" if is_traced(rate) and not is_schedule(rate) else rf", \quad q = {schedule_latex(rate)}"
    return [Row(rf"\chi_{{m}} = 0 \text{{ with probability }} q \text{{ in training, }} 1 \text{{ otherwise}}{q}")]


def label_rows(model: Model) -> list[Row]:
    """Return the lines of LaTeX that define the label y of a sample and the constants in it."""
    k, constants = model.teachers, []
    match model.target.readout:
        case CommitteeReadout(activation=activation, second=second):
            field, every = (r"\lambda^{*}_{1}", "") if k == 1 else (r"\lambda^{*}_{r}", r"\sum_{r=1}^{k}")
            weight = "" if second is None else "a^{*}_{r}"
            text = product_latex(reciprocal_latex("k", k), every, weight, activation_latex(activation, field))
            if second is not None and not is_traced(second):
                constants = [Row(rf"a^{{*}} = {number_latex(second)}")]
        case QuadraticReadout(R=R):
            text = r"\sum_{r=1}^{k} \sum_{s=1}^{k} R_{rs} \lambda^{*}_{r} \lambda^{*}_{s}"
            if not is_traced(R):
                constants = [Row(rf"R = {number_latex(R)}")]
        case FunctionReadout(fn=fn):
            text = rf"{function_name(fn) or 'g'}(\lambda^{{*}}_{{1}}, \dots, \lambda^{{*}}_{{k}})"
        case TimedReadout(fn=fn):
            text = rf"{function_name(fn) or 'g'}(\lambda^{{*}}_{{1}}, \dots, \lambda^{{*}}_{{k}}, t)"
        case ClassLabels():
            text = "y_{c}"
        case ClassReadouts(turns=turns):
            c, time = "_{c}" if model.classes > 1 else "", "(t)" if is_schedule(turns) else ""
            text = rf"r{c}(\lambda^{{*}})" if turns is None else rf"r{c}(T{c}{time} \lambda^{{*}})"
        case other:
            text = rf"{function_name(type(other))}(\lambda^{{*}})"
    noise = r"\sqrt{\Delta} z" if has_noise(model) else ""
    return [Row("y", sum_latex([text, noise])), *constants]


# --- the law of the fields ---------------------------------------------------------------------------------------------------


def law_rows(model: Model) -> list[Row]:
    """Return the lines of LaTeX with the law of the fields and of the label noise."""
    variance = variance_latex(model)
    sigma = variance and f"{variance} "
    omega = r"\begin{pmatrix} Q & M \\ M^{\top} & P \end{pmatrix}"
    both = r"(\lambda, \lambda^{*})"
    noise = [Row(r"z \sim N(0, 1)")] if has_noise(model) else []
    if model.centred:
        weights: Any = model.data.class_probabilities
        # classes without means matter only through their readouts or heads
        shown = weights.shape[0] > 1 and not (is_traced(weights) and not is_schedule(weights))
        classes = [Row(rf"\text{{class }} c \text{{ has probability }} \pi_{{c}}, \quad \pi = {schedule_latex(weights)}")]
        return [Row(rf"{both} \sim N\left(0, {sigma}{omega}\right)"), *(classes if shown else []), *noise, *gram_rows(model)]
    middle = r"\begin{pmatrix} M b_{c} \\ P b_{c} \end{pmatrix}"
    given = rf"{both} \sim N\left({middle}, {sigma}{omega}\right) \text{{ for class }} c \text{{, of probability }} \pi_{{c}}"
    return [Row(given), *noise, *class_rows(model)]


def gram_rows(model: Model) -> list[Row]:
    """Return the line of LaTeX with the Gram matrix P of the fixed directions; no line if P is traced by JAX."""
    P = model.target.gram
    if is_traced(P):
        return []
    return [Row("P = I" if np.array_equal(P, np.eye(len(P))) else rf"P = {number_latex(P)}")]


def class_rows(model: Model) -> list[Row]:
    """Return LaTeX lines with the classes' probabilities, means and labels, and the Gram matrix of the fixed directions."""
    data: Any = model.data
    weights, means = data.weights, data.means
    labels = getattr(model.target.readout, "labels", None)
    if any(is_traced(each) and not is_schedule(each) for each in (weights, means, labels)):
        return []
    y = "" if labels is None else rf", \quad y = {number_latex(labels)}"
    return [Row(rf"\pi = {schedule_latex(weights)}, \quad b = {number_latex(means)}{y}"), *gram_rows(model)]
