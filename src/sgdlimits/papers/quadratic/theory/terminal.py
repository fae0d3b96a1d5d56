r"""Decay of the risk at the end of learning in a quadratic network [3]_.

The decay is exponential for as many students as teachers, and algebraic for more.

At zero risk :math:`U^\top U/p = T^\top T/p^*`, where the rows of U are the students and those of T the teachers. Rotate the
students so that the first :math:`p^*` of them fit the teachers. Their components orthogonal to the teachers have a Gram
matrix :math:`S_{11}` that obeys, to first order,

.. math:: \dot S_{11} = -\frac{16\eta}{pp^*} S_{11} + \frac{64\eta^2}{p^2 p^{*2}}\big(\mathrm{Tr}\,S_{11} + 2 S_{11}\big),
          \qquad R = \frac{4}{pp^*}\,\mathrm{Tr}\, S_{11}.

The other :math:`n = p - p^*` students are not needed to fit the teachers, and do not move to first order. While the norms of
the first :math:`p^*` follow them adiabatically, their Gram matrix Z obeys

.. math:: \dot Z = -\frac{16\eta}{p^2}\Big(\frac{\mathrm{Tr}\,Z}{p^*+2} Z + Z^2\Big), \qquad
          Z \to \frac{p^2 (p^*+2)}{16\,(p+2)\,\eta t}\, 1_n ,

and the remaining risk is proportional to :math:`Z^2`. SGD's noise turns that risk into :math:`S_{11}`, which adds to it.
"""

from __future__ import annotations

from math import nan
from typing import NamedTuple

from scipy.optimize import brentq

from sgdlimits.domain import checked
from sgdlimits.errors import BadInput
from sgdlimits.papers.quadratic.theory.plateau import Coefficients, compute_largest_rates, read_coefficients
from sgdlimits.problem.projection import ProjectionProblem


class TerminalDecay(NamedTuple):
    r"""Law by which the risk finally decays in time t: :math:`e^{-\text{rate}\,t}` or :math:`\text{constant}/t^2`.

    Parameters
    ----------
    law : "exponential" or "algebraic"
    rate : decay rate of the risk per unit of t; NaN for the algebraic law
    constant : limit of the risk times t squared; multiply by `problem.rate` squared for the paper's time; NaN for the
        exponential law
    """

    law: str
    rate: float
    constant: float


@checked
def terminal_decay(problem: ProjectionProblem, *, corrector: bool = True) -> TerminalDecay:
    r"""Law by which the risk R decays at the end of learning, without noise.

    Here :math:`\eta` is the learning rate, p the width and :math:`p^*` the number of teachers; the corrector is the part of the
    drift quadratic in :math:`\eta`.

    For :math:`p = p^*` the rate is :math:`\frac{16\eta}{pp^*}\big(1 - \frac{4\eta(p^*+2)}{pp^*}\big)`: twice the smallest
    eigenvalue of the Hessian, :math:`8/(pp^*)`, without the corrector. For :math:`p > p^*`

    .. math:: \eta^2 t^2 R \to \frac{p^2 (p-p^*)(p^*+2)}{128\,(p+2)}\;
              \frac{1 - 8\eta/(pp^*)}{1 - 4\eta(p^*+2)/(pp^*)}.

    The second law holds for starts at which Q has full rank, as every random start. The leading corrections to it fall as
    :math:`t^{-2(p^*+2)/(p+2)}`, if the students have different norms outside the teachers' span, and as 1/t. With label noise
    the risk ends at `stationary_risk`.

    Parameters
    ----------
    problem : `presets.quadratic_network` without noise, at least as many students as teachers
    corrector : whether terms of second order in the learning rate are included, as in `ODE`

    >>> import sgdlimits as sl
    >>> problem = sl.presets.quadratic_network(width=6, teachers=3, lr=0.01)
    >>> decay = terminal_decay(problem, corrector=False)
    >>> decay.law, round(decay.constant * problem.rate.item() ** 2, 6)                  # 36 * 3 * 5 / (128 * 8)
    ('algebraic', 0.527344)
    """
    at, lr = read_coefficients(problem, corrector), float(problem.algorithm.lr_sample)
    if at.noise > 0:
        raise BadInput(
            f"with label noise = {at.noise:g} the risk does not decay to its floor. Use stationary_risk, or noise = 0."
        )
    _check_zero_risk(at)
    # vanishes at the largest rate at which zero risk is stable
    slow = 1 - 4 * at.lr * (at.k + 2) / (at.p * at.k)
    fast = 1 - 8 * at.lr / (at.p * at.k)
    if at.p == at.k:
        return TerminalDecay("exponential", 16 * lr / (at.p * at.k) * slow, nan)
    constant = at.p**2 * (at.p - at.k) * (at.k + 2) / (128 * (at.p + 2)) * fast / slow
    return TerminalDecay("algebraic", nan, constant / lr**2)


@checked
def stationary_risk(problem: ProjectionProblem) -> float:
    r"""Population risk R at which learning from noisy labels ends, including the floor :math:`\Delta`.

    Here :math:`\eta` is the learning rate, p the width, :math:`p^*` the number of teachers, and M and Q have the overlaps with
    the teachers and between students.

    There :math:`M^\top M = y\,1`, and Q has :math:`p^*` eigenvalues x and :math:`p - p^*` eigenvalues z. For small learning
    rates :math:`R - \Delta \approx 4\eta\Delta/p`. With more students than teachers it is reached slowly: at the rate
    :math:`16\eta^2\Delta/p^2` for one more and :math:`\frac{p^*+2}{p+2}` of it for several, to first order in
    :math:`\eta\Delta`.

    >>> import sgdlimits as sl
    >>> round(stationary_risk(sl.presets.quadratic_network(width=3, teachers=2, lr=0.02, noise=0.5)), 4)
    0.5141
    """
    return _stationary_state(read_coefficients(problem), stationary_norms(problem)[2])[2]


@checked
def stationary_norms(problem: ProjectionProblem) -> tuple[float, float, float]:
    r"""Stationary eigenvalues (x, y, z) of the overlaps that label noise leaves at the end of learning.

    They are the eigenvalues of Q in the teachers' span, of :math:`M^\top M`, and of Q outside the span, with M and Q the
    overlaps with the teachers and between students; see `stationary_risk`.
    """
    at = read_coefficients(problem)
    _check_zero_risk(at)
    z = _outside_norm(at)
    x, y, _ = _stationary_state(at, z)
    return x, y, z


def _check_zero_risk(at: Coefficients) -> None:
    """Raise `BadInput` unless the network can represent the teachers, and zero risk is stable."""
    if at.p < at.k:
        raise BadInput(
            f"{at.p} students cannot represent {at.k} teachers, so the risk cannot reach zero. Use at least {at.k} students."
        )
    if at.lr >= compute_largest_rates(at).solution:
        raise BadInput(f"zero risk is unstable at lr = {at.lr:g}. Use an lr below {compute_largest_rates(at).solution:.6g}.")


def _stationary_state(at: Coefficients, z: float) -> tuple[float, float, float]:
    """Return the stationary x, y and risk of `stationary_norms`, given the squared norm z outside the teachers' span.

    The equation for y is linear.
    """
    p, k, eta = at.p, at.k, at.lr
    x = p / k - (p - k) * z / (k + 2)
    tau = (k * x + (p - k) * z) / p - 1
    risk_0 = tau**2 + 2 * ((k * x**2 + (p - k) * z**2) / p**2 + 1 / k) + at.noise
    # the drift of x apart from its terms linear in y
    own = -(tau * x + 2 * x**2 / p) + 2 * eta / p * (risk_0 * x + 4 * tau * x**2 / p + 8 * x**3 / p**2)
    slope = 2 / k + 2 * eta / p * (-4 * x / p - 4 * tau / k - 16 * x / (p * k) + 8 / k**2)
    y = -own / slope
    return x, y, risk_0 - 4 * y / p


def _outside_norm(at: Coefficients) -> float:
    """Return the stationary squared norm z of the students outside the teachers' span, which label noise sustains."""
    p, n = at.p, at.p - at.k
    if n == 0 or at.noise == 0:
        return 0.0

    def push(z: float) -> float:
        """Return the relative drift of the squared norm z outside the teachers' span."""
        x, _, risk = _stationary_state(at, z)
        tau = (at.k * x + n * z) / p - 1
        return -(tau + 2 * z / p) + 2 * at.lr / p * (risk + 4 * tau * z / p + 8 * z**2 / p**2)

    # the order of z at small rates
    end = at.lr * at.noise
    while push(end) > 0:
        end *= 2
        if end > p:
            raise BadInput(
                f"the students' norms do not become stationary at lr = {at.lr:g}, noise = {at.noise:g}. Use a smaller lr."
            )
    return float(brentq(push, 0.0, end, xtol=1e-15))
