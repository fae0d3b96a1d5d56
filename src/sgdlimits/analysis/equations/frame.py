r"""Plain SGD as d grows: how the statistics move, given the moments of one sample.

With :math:`\Phi = E[G\lambda^{*\top}]`, :math:`\Psi = E[G\lambda^\top]`, :math:`\Gamma = E[GG^\top]` and
:math:`A = E[\partial_a l]` the free motion is the one in the docstring of `ProjectionProblem`; the sphere takes the change of
each norm out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sgdlimits.algorithm.base import Algorithm
from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.analysis.equations.base import Equations, Row, bracket, rate, spelt, times, total
from sgdlimits.errors import is_traced
from sgdlimits.model.network import TwoLayer
from sgdlimits.model.sample import Model
from sgdlimits.part import is_schedule


class Closed(NamedTuple):
    """The moments of one sample as LaTeX, and what their letters stand for.

    `fixed`, `field`, `gradient` and `second` are the right-hand sides of Phi, Psi, Gamma and A; `gradient` is empty where there
    is no corrector. `teachers` are the values that the letter r takes.
    """

    fixed: str
    field: str
    gradient: str
    second: str
    where: tuple[Row, ...]
    teachers: str = r"r = 1, \dots, k"


class EquationSetting(NamedTuple):
    """One sample and the algorithm, and the second layer where it is the same number for all units at all times."""

    model: Any
    algorithm: Algorithm
    constant: float | None

    @property
    def trains_second(self) -> bool:
        return self.algorithm.trains_second

    @property
    def share(self) -> str:
        """What stands before the sum over units."""
        network = self.model.network
        return r"\frac{1}{p}" if isinstance(network, TwoLayer) and network.mean and network.width > 1 else ""

    def layer(self, index: str) -> str:
        """The factor of a unit in the network."""
        if self.constant is not None:
            return times(self.constant, self.share)
        return rf"\frac{{a_{{{index}}}}}{{p}}" if self.share else f"a_{{{index}}}"


def zero(value: Any) -> bool:
    """Whether a number is known to be zero."""
    return not is_traced(value) and not np.any(value)


def one(value: Any) -> bool:
    """Whether a number is known to be one."""
    return not is_traced(value) and bool(np.all(np.asarray(value) == 1))


def has_noise(model: Model) -> bool:
    """Whether labels have noise in print: always for Gaussian inputs, where it may be zero, else where it is not."""
    return model.centred or not zero(model.target.noise)


def of_sgd(setting: EquationSetting, closed: Closed) -> Equations:
    """The ODE of plain SGD with these moments."""
    model, algorithm = setting.model, setting.algorithm
    assert isinstance(algorithm, OnePassSGD)
    ridge, sigma = not zero(algorithm.ridge), "" if one(model.data.squared_length) else r"\sigma^{2}"
    decay = lambda letter, factor=1: times(factor, r"\alpha", letter) if ridge else ""
    pulled = lambda terms: terms[0] if len([term for term in terms if term]) == 1 else bracket(total(terms))
    M = times(-1, r"\gamma", pulled([r"\Phi_{jr}", decay("M_{jr}")]))
    Q = times(-1, r"\gamma", bracket(total([r"\Psi_{jl}", r"\Psi_{lj}", decay("Q_{jl}", 2)])))
    if closed.gradient:
        Q = total([Q, times(r"\gamma^{2}", sigma, r"\Gamma_{jl}")])
    named = [Row(r"\Phi_{jr}", closed.fixed), Row(r"\Psi_{jl}", closed.field)]
    named += [Row(r"\Gamma_{jl}", closed.gradient)] if closed.gradient else []
    if algorithm.sphere:
        half = r"\frac{1}{2}"
        ode = [
            Row(rate("M_{jr}"), rf"V_{{jr}} - {half} M_{{jr}} W_{{jj}}"),
            Row(rate("Q_{jl}"), rf"W_{{jl}} - {half} Q_{{jl}} \left(W_{{jj}} + W_{{ll}}\right)"),
        ]
        named = [Row("V_{jr}", M), Row("W_{jl}", Q), *named]
    else:
        ode = [Row(rate("M_{jr}"), M), Row(rate("Q_{jl}"), Q)]
    if setting.trains_second and closed.second:
        ode.append(Row(rate("a_{j}"), times(-1, r"\gamma_{2}", pulled(["A_{j}", decay("a_{j}")]))))
        named.append(Row("A_{j}", closed.second))
    elif setting.trains_second:
        ode += _scalars(setting, decay, pulled)
    words = [rf"j, l = 1, \dots, p \text{{ for students, }} {closed.teachers} \text{{ for fixed directions}}"]
    if algorithm.sphere:
        words.append(r"Q_{jj} = 1 \text{ on the sphere}")
    return Equations(tuple(ode), (*named, *closed.where, *map(Row, words)), parameters(setting))


def _scalars(setting: EquationSetting, decay: Any, pulled: Any) -> list[Row]:
    """The scalars of a network that is no sum of units, by name."""
    names = setting.algorithm.trained_scalars
    names = tuple(setting.model.network.axes) if isinstance(names, bool) else names
    letter = lambda name: rf"\text{{{spelt(name)}}}"
    pull = lambda name: [rf"\mathbb{{E}}[\partial_{{{letter(name)}}} \ell]", decay(letter(name))]
    return [Row(rate(letter(name)), times(-1, _second_rate(setting, name), pulled(pull(name)))) for name in names]


def _second_rate(setting: EquationSetting, name: str) -> str:
    """The letter of the learning rate of a scalar."""
    own = isinstance(getattr(setting.algorithm, "lr_second", None), dict)
    return rf"\gamma_{{\text{{{spelt(name)}}}}}" if own else r"\gamma_{2}"


def _variance(data: Any, variance: Any) -> Any:
    """Return the variance of the inputs, as a schedule where it is one; None where it is traced."""
    if is_schedule(data.spread):  # the root of a variance, unless it was made of something else
        root = data.spread
        return root.left if getattr(root, "operation", "") == "pow" and is_schedule(root.left) else variance
    return None if is_traced(variance) else float(f"{float(variance):.12g}")


def parameters(setting: EquationSetting) -> tuple[tuple[str, str, Any], ...]:
    """Keyword, letter and value of what the equations contain; values that are traced are not printed."""
    model, algorithm = setting.model, setting.algorithm
    found: list[tuple[str, str, Any]] = [("width", "p", model.width), ("teachers", "k", model.teachers)]
    b = algorithm.batch
    over_batch = "" if b == 1 else "/batch"
    found.append((f"lr{over_batch}", r"\gamma", algorithm.lr_sample))
    second = getattr(algorithm, "lr_second", None)
    if setting.trains_second and second is not None and not isinstance(second, dict):
        found.append((f"lr_second{over_batch}", r"\gamma_{2}", second / b))
    for name, value in second.items() if isinstance(second, dict) else ():
        found.append((f"lr_second of {name}{over_batch}", _second_rate(setting, name), value / b))
    if has_noise(model):
        found.append(("noise", r"\Delta", model.target.noise))
    if not zero(algorithm.ridge):
        found.append(("ridge", r"\alpha", algorithm.ridge))
    variance = model.data.squared_length
    if not one(variance):
        found.append(("variance", r"\sigma^{2}", _variance(model.data, variance)))
    return tuple(found)
