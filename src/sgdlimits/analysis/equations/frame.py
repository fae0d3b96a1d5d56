r"""LaTeX of the ODE of plain SGD as d grows, given the moments of one sample.

A sample with loss l has fields :math:`\lambda` of the students and :math:`\lambda^*` of the fixed directions, and G is the
derivative of l with respect to :math:`\lambda`. With :math:`\Phi = E[G\lambda^{*\top}]`, :math:`\Psi = E[G\lambda^\top]`,
:math:`\Gamma = E[GG^\top]` and :math:`A = E[\partial_a l]` for the second layer a, the unconstrained ODE is the one in the
docstring of `ProjectionProblem`; on the sphere the change of each norm is subtracted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sgdlimits.algorithm.base import Algorithm
from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.analysis.equations.base import (
    Equations,
    Row,
    bracket_latex,
    escape_latex,
    product_latex,
    sum_latex,
    time_derivative_latex,
)
from sgdlimits.errors import is_traced
from sgdlimits.model.network import TwoLayer
from sgdlimits.model.sample import Model
from sgdlimits.part import is_schedule
from sgdlimits.schedule import Root


class MomentRows(NamedTuple):
    """LaTeX of the moments of one sample in the ODE of SGD, with the definitions of their symbols.

    Parameters
    ----------
    fixed, field, gradient, second : right-hand sides of Phi, Psi, Gamma and A in the module's docstring; `gradient` is empty
        if the ODE has no term quadratic in the learning rate
    where : definitions of the symbols
    teachers : range of the index r of fixed directions
    """

    fixed: str
    field: str
    gradient: str
    second: str
    where: tuple[Row, ...]
    teachers: str = r"r = 1, \dots, k"


class EquationSetting(NamedTuple):
    """Model and algorithm of an ODE in LaTeX, and the second-layer weight if it is fixed and equal for all units."""

    model: Any
    algorithm: Algorithm
    constant: float | None

    @property
    def trains_second(self) -> bool:
        """Whether the second layer is trained."""
        return self.algorithm.trains_second

    @property
    def mean_factor(self) -> str:
        """LaTeX of the factor before a network's sum over units: 1/p for a mean of p units, else empty."""
        network = self.model.network
        return r"\frac{1}{p}" if isinstance(network, TwoLayer) and network.mean and network.width > 1 else ""

    def unit_factor(self, index: str) -> str:
        """Return the LaTeX of a unit's second-layer weight, divided by the width p in a mean over units."""
        if self.constant is not None:
            return product_latex(self.constant, self.mean_factor)
        return rf"\frac{{a_{{{index}}}}}{{p}}" if self.mean_factor else f"a_{{{index}}}"


def is_zero(value: Any) -> bool:
    """Return whether a value is known, not traced by JAX, and zero."""
    return not is_traced(value) and not np.any(value)


def is_one(value: Any) -> bool:
    """Return whether a value is known, not traced by JAX, and one."""
    return not is_traced(value) and bool(np.all(np.asarray(value) == 1))


def has_noise(model: Model) -> bool:
    """Return whether the equations of a model contain label noise: if inputs are centred, or its variance is not zero."""
    return model.centred or not is_zero(model.target.noise)


def variance_latex(model: Model) -> str:
    """Return the variance of the inputs as LaTeX, an empty string if it is 1."""
    return "" if is_one(model.data.squared_length) else r"\sigma^{2}"


def sgd_equations(setting: EquationSetting, closed: MomentRows) -> Equations:
    """Return the ODE of plain SGD, given the moments of one sample as LaTeX."""
    model, algorithm = setting.model, setting.algorithm
    assert isinstance(algorithm, OnePassSGD)
    ridge, sigma = not is_zero(algorithm.ridge), variance_latex(model)
    decay = lambda letter, factor=1: product_latex(factor, r"\alpha", letter) if ridge else ""
    # brackets only around several terms
    pulled = lambda terms: terms[0] if len([term for term in terms if term]) == 1 else bracket_latex(sum_latex(terms))
    M = product_latex(-1, r"\gamma", pulled([r"\Phi_{jr}", decay("M_{jr}")]))
    Q = product_latex(-1, r"\gamma", bracket_latex(sum_latex([r"\Psi_{jl}", r"\Psi_{lj}", decay("Q_{jl}", 2)])))
    if closed.gradient:
        Q = sum_latex([Q, product_latex(r"\gamma^{2}", sigma, r"\Gamma_{jl}")])
    named = [Row(r"\Phi_{jr}", closed.fixed), Row(r"\Psi_{jl}", closed.field)]
    named += [Row(r"\Gamma_{jl}", closed.gradient)] if closed.gradient else []
    if algorithm.sphere:
        half = r"\frac{1}{2}"
        ode = [
            Row(time_derivative_latex("M_{jr}"), rf"V_{{jr}} - {half} M_{{jr}} W_{{jj}}"),
            Row(time_derivative_latex("Q_{jl}"), rf"W_{{jl}} - {half} Q_{{jl}} \left(W_{{jj}} + W_{{ll}}\right)"),
        ]
        named = [Row("V_{jr}", M), Row("W_{jl}", Q), *named]
    else:
        ode = [Row(time_derivative_latex("M_{jr}"), M), Row(time_derivative_latex("Q_{jl}"), Q)]
    if setting.trains_second and closed.second:
        ode.append(Row(time_derivative_latex("a_{j}"), product_latex(-1, r"\gamma_{2}", pulled(["A_{j}", decay("a_{j}")]))))
        named.append(Row("A_{j}", closed.second))
    elif setting.trains_second:
        ode += _scalar_equations(setting, decay, pulled)
    # ranges of the indices last
    words = [rf"j, l = 1, \dots, p \text{{ for students, }} {closed.teachers} \text{{ for fixed directions}}"]
    if algorithm.sphere:
        words.append(r"Q_{jj} = 1 \text{ on the sphere}")
    return Equations(tuple(ode), (*named, *closed.where, *map(Row, words)), list_parameters(setting))


def _scalar_equations(setting: EquationSetting, decay: Any, pulled: Any) -> list[Row]:
    """Return the equations of the trained scalars, by name, of a network that is not a plain sum of units."""
    names = setting.algorithm.trained_scalars
    names = tuple(setting.model.network.axes) if isinstance(names, bool) else names
    letter = lambda name: rf"\text{{{escape_latex(name)}}}"
    pull = lambda name: [rf"\mathbb{{E}}[\partial_{{{letter(name)}}} \ell]", decay(letter(name))]
    return [
        Row(time_derivative_latex(letter(name)), product_latex(-1, _second_rate_latex(setting, name), pulled(pull(name))))
        for name in names
    ]


def _second_rate_latex(setting: EquationSetting, name: str) -> str:
    """Return the LaTeX of the learning rate of a trained scalar."""
    own = isinstance(getattr(setting.algorithm, "lr_second", None), dict)
    return rf"\gamma_{{\text{{{escape_latex(name)}}}}}" if own else r"\gamma_{2}"


def _printed_variance(data: Any) -> Any:
    """Return the variance of the inputs for printing: a float, a schedule, or None if it is traced by JAX."""
    # print sigma^2 as the schedule the user gave, not its square root squared
    root, variance = data.spread, data.squared_length
    if is_schedule(root):  # the root of a variance, unless it was made of something else
        return root.square if isinstance(root, Root) else variance
    return None if is_traced(variance) else float(f"{float(variance):.12g}")


def list_parameters(setting: EquationSetting) -> tuple[tuple[str, str, Any], ...]:
    """Return the keyword, the LaTeX symbol and the value of each parameter that appears in the equations."""
    model, algorithm = setting.model, setting.algorithm
    found: list[tuple[str, str, Any]] = [("width", "p", model.width), ("teachers", "k", model.teachers)]
    # equations are per sample: rates are divided by the batch
    b = algorithm.batch
    over_batch = "" if b == 1 else "/batch"
    found.append((f"lr{over_batch}", r"\gamma", algorithm.lr_sample))
    second = getattr(algorithm, "lr_second", None)
    if setting.trains_second and second is not None and not isinstance(second, dict):
        found.append((f"lr_second{over_batch}", r"\gamma_{2}", second / b))
    for name, value in second.items() if isinstance(second, dict) else ():
        found.append((f"lr_second of {name}{over_batch}", _second_rate_latex(setting, name), value / b))
    if has_noise(model):
        found.append(("noise", r"\Delta", model.target.noise))
    if not is_zero(algorithm.ridge):
        found.append(("ridge", r"\alpha", algorithm.ridge))
    if letter := variance_latex(model):
        found.append(("variance", letter, _printed_variance(model.data)))
    return tuple(found)
