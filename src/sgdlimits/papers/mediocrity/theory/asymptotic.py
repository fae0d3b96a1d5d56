r"""The end of learning when norms are free or the second layer is trained: the plateau of the excess risk, and the way there.

With :math:`g = \gamma/p` and label noise of variance :math:`\Delta` the end of learning has all students alike up to a rotation
among them, and its excess risk is

.. math:: R = g\Delta + g^2\,[6\Delta + c\,\Delta^2] + O(g^3), \qquad
          c = -\frac{p-1}{4p}, \quad \frac{p-1}{4(p+2)}, \quad -\frac{p+5}{4(p+2)}

for weights on the sphere (`asymptotic_excess_risk`), for weights that are free, and for weights on the sphere with a trained
second layer. For one unit on the sphere, or free, R is :math:`g\Delta/(1-6g)` exactly, (8).

The network is :math:`x^\top A x` with :math:`A = \frac1p\sum_j a_j u_j u_j^\top`, and with :math:`K = e e^\top - A` and
:math:`\epsilon = \mathrm{tr} K` the moments of the error D are :math:`E[D x x^\top] = \epsilon + 2K` and
:math:`E[D^2 x x^\top] = \epsilon^2 + 2\,\mathrm{tr} K^2 + 4\epsilon K + 8 K^2`. At the end :math:`Q/p` has the eigenvalue
:math:`\alpha` along M and :math:`\kappa` orthogonal to it, and :math:`\mu = |M|^2/p`.

Without label noise learning on the sphere ends on a manifold: every unit with :math:`a_j \ne 0` is :math:`\pm w_\star` and the
mean of a is 1. The components :math:`v_j` of the students orthogonal to the teacher decay as :math:`\tau^{-1/2}` in the paper's
time :math:`\tau = \gamma t/p`. The network depends on them through :math:`B = \frac1p\sum_j a_j v_j v_j^\top`; to first order

.. math:: \dot v_j = -4 a_j\,\big(B + \theta\,\mathrm{tr} B\big)\,v_j, \qquad \theta = 1 \text{ (fixed)}, \quad
          \tfrac13 \text{ (trained)},

at :math:`\sum_j a_j v_j = 0`. The mean of a trained second layer adapts to B, which weakens the force.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import root

from sgdlimits.domain import NotNegative, RealWidth, Vector, checked
from sgdlimits.errors import BadInput
from sgdlimits.papers.mediocrity.theory.rates import as_float_arrays, max_lr

CONTINUATION_STEPS = 24
"""Number of continuation steps in the learning rate, from zero to the requested value."""


class EndState(NamedTuple):
    """Symmetric end state of learning, in which all students are alike up to rotations.

    Its fields are second layer, overlap with the teacher, norm, overlap between students, and excess risk.
    """

    a: np.ndarray
    m: np.ndarray
    norm: np.ndarray
    q: np.ndarray
    excess_risk: np.ndarray


@checked
def free_end(width: RealWidth | ArrayLike, lr: NotNegative | ArrayLike, noise: NotNegative | ArrayLike) -> EndState:
    r"""End state of phase retrieval in the ODE, with free norms and the second layer fixed at 1.

    At p = 1 the norm is 1 and the overlap is the one on the sphere, so (8) holds unchanged off the sphere. The result is NaN
    where the state cannot be continued from small learning rates; see `free_max_lr` for its stability.

    >>> float(free_end(1, lr=0.1, noise=0.4).excess_risk.round(9)), float(free_end(3, lr=0.15, noise=1.0).excess_risk.round(9))
    (0.1, 0.071388992)
    """
    return EndState(*np.vectorize(_solve_free_end, otypes=[float] * 5)(*as_float_arrays(width, lr, noise)))


@checked
def trained_end(width: RealWidth | ArrayLike, lr: NotNegative | ArrayLike, noise: NotNegative | ArrayLike) -> EndState:
    r"""End state of phase retrieval in the ODE on the sphere, with a second layer trained at any learning rate.

    Above some learning rate all students are parallel, q = 1, and the network acts as one unit with the learning rate g.

    >>> state = trained_end(3, lr=0.15, noise=1.0)
    >>> float(state.a.round(4)), float(state.excess_risk.round(4))
    (0.9811, 0.0678)
    """
    return EndState(*np.vectorize(_solve_trained_end, otypes=[float] * 5)(*as_float_arrays(width, lr, noise)))


@checked
def free_max_lr(noise: NotNegative | ArrayLike = 0.0) -> np.ndarray:
    r"""Learning rate above which phase retrieval by one unit with a free norm has no stable fixed point after the plateau.

    Here :math:`\Delta` is the variance of the label noise. For :math:`\Delta \ge 4` the rate is `max_lr`, where the plateau
    rises continuously to the risk of the saddle, as on the sphere. For less noise, norm and overlap start to oscillate at a
    smaller learning rate :math:`\gamma`, the smaller root of :math:`(6\Delta-72)\gamma^2 + (42+\Delta)\gamma - 5 = 0`.

    >>> free_max_lr([0.0, 1.0, 4.0, 8.0]).round(4)
    array([0.1667, 0.1515, 0.125 , 0.1   ])
    """
    (noise,) = as_float_arrays(noise)
    linear, square = 42 + noise, 6 * noise - 72
    # the root in a form that stays finite where the quadratic term vanishes
    oscillates = 10 / (linear + np.sqrt(linear**2 + 20 * square))
    return np.where(noise < 4, oscillates, max_lr(1, noise))


@checked
def plateau_series(
    width: RealWidth | ArrayLike, lr: NotNegative | ArrayLike, noise: NotNegative | ArrayLike
) -> tuple[np.ndarray, ...]:
    r"""Final excess risk to second order in lr/p, for p students on the sphere, with free norms or with a trained second layer.

    The kinds are weights on the sphere, free weights, and weights on the sphere with a trained second layer.

    >>> [float(each.round(6)) for each in plateau_series(2, lr=0.02, noise=1.0)]
    [0.010588, 0.010606, 0.010556]
    """
    p, lr, noise = as_float_arrays(width, lr, noise)
    g = lr / p
    curves = -(p - 1) / (4 * p), (p - 1) / (4 * (p + 2)), -(p + 5) / (4 * (p + 2))
    return tuple(g * noise + g**2 * (6 * noise + c * noise**2) for c in curves)


def _solve_free_end(p: float, lr: float, noise: float) -> tuple[float, ...]:
    """Solve for the end state with free norms, as the entries of `EndState`, at one set of parameters."""

    def state(x):
        """Return the trace of the error matrix, the eigenvalue alpha of Q/p along M, and the excess risk, for the unknowns x.

        Here Q and M have the overlaps between p students and with the teacher.
        """
        kappa, mu = x
        epsilon = -2 / 3 * (p - 1) * kappa  # tr K, with alpha = 1 + epsilon/2 where M is stationary
        alpha = 1 + epsilon / 2
        return epsilon, alpha, epsilon**2 / 2 + 1 - 2 * mu + alpha**2 + (p - 1) * kappa**2

    def equations(x, g):
        """Return the residuals of the equations for the end state, at the unknowns x and at learning rate over width g.

        Here x has the unknowns, and M the overlaps with the teacher.
        """
        (kappa, mu), (epsilon, alpha, risk) = x, state(x)
        square = noise + 2 * risk  # the mean squared error
        across = epsilon - 2 * kappa + g * (square - 4 * epsilon * kappa + 8 * kappa**2)
        far = mu - alpha**2
        along = epsilon * alpha + 2 * far + g * (square * alpha + 4 * epsilon * far + 8 * (mu - 2 * alpha * mu + alpha**3))
        return across, along

    kappa, mu = _continue_solution(equations, [0.0, 1.0], lr / p)
    _, alpha, risk = state((kappa, mu))
    norm = alpha + (p - 1) * kappa
    return 1.0, np.sqrt(mu), norm, alpha - kappa if p > 1 else norm, risk


def _solve_trained_end(p: float, lr: float, noise: float) -> tuple[float, ...]:
    """Solve for the end state with a trained second layer, as the entries of `EndState`, at one set of parameters."""

    def state(x):
        """Return the eigenvalue, the two traces and the excess risk of the end state, given the unknowns x of the equations.

        They are the eigenvalue of Q/p along M, and the traces of its second and third powers, with Q the overlaps between p
        students and M those with the teacher.
        """
        a, kappa, mu = x
        eigenvalues, count = np.array([1 - (p - 1) * kappa, kappa]), np.array([1, p - 1])
        square, cube = count @ eigenvalues**2, count @ eigenvalues**3
        return eigenvalues[0], square, cube, (1 - a) ** 2 / 2 + 1 - 2 * a * mu + a**2 * square

    def equations(x, g):
        """Return the residuals of the equations for the end state, at the unknowns x and at learning rate over width g.

        They are those of the second layer, of the direction of the teacher overlaps M, and of the others; x has the unknowns.
        """
        (a, kappa, mu), (alpha, square, cube, risk) = x, state(x)
        epsilon, spread = 1 - a, noise + 2 * risk
        far = mu - a * square
        # the sphere projects out the radial component, which is common to all directions
        radial = spread + 4 * epsilon * far + 8 * (mu - 2 * a * alpha * mu + a**2 * cube)
        second = epsilon + 2 * far
        along = epsilon + 2 - 2 * a * alpha - g * a * radial
        across = epsilon - 2 * a * kappa + g * a * (spread - 4 * epsilon * a * kappa + 8 * (a * kappa) ** 2 - radial)
        return second, along, across

    a, kappa, mu = _continue_solution(equations, [1.0, 0.0, 1.0], lr / p)
    if p > 1 and kappa < 0:  # an eigenvalue of Q/p cannot be negative: the students are parallel, as one unit
        return _solve_trained_end(1.0, lr / p, noise)
    alpha, _, _, risk = state((a, kappa, mu))
    return a, np.sqrt(mu), 1.0, alpha - kappa if p > 1 else 1.0, risk


def _continue_solution(equations: Callable, start: list[float], g: float) -> np.ndarray:
    """Solve equations(x, g) = 0 by continuation from `start` at g = 0; NaN if it is lost or its last entry is negative."""
    x = np.array(start)
    # each solution is the guess for the next rate, so that the branch is kept
    for step in np.linspace(0, g, CONTINUATION_STEPS + 1)[1:]:
        found = root(equations, x, args=(step,), tol=1e-14)
        x = found.x
        # mu is a squared overlap
        if not np.abs(found.fun).max() < 1e-9 or x[-1] < 0:
            return np.full(x.size, np.nan)
    return x


class EndRates(NamedTuple):
    """Rates, in the paper's time, at which deviations from the end of learning decay, for small label noise times lr/p.

    Parameters
    ----------
    mean : rate of the mean of the second layer; NaN if it is fixed
    differences : rate of differences between entries of the second layer; NaN if it is fixed
    common : rate of the component that all students share
    trace : rate of the trace of the components in which students differ
    apart : rate of the traceless part of these components
    """

    mean: np.ndarray
    differences: np.ndarray
    common: np.ndarray
    trace: np.ndarray
    apart: np.ndarray


@checked
def terminal_risk(a: Vector, lr: NotNegative, trained: bool = True) -> float:
    r"""Limit of :math:`\tau^2` times the risk of phase retrieval without label noise, with :math:`\tau` the paper's time.

    Here p is the width and :math:`g = \gamma/p` the learning rate over the width.

    With a fixed second layer, :math:`a_j = 1`,

    .. math:: \frac{p-1}{64\,p}\Big[1 + \frac{2g\,(5 - 4/p)}{1-6g}\Big].

    With a trained one that ends at :math:`a`, of mean 1, and :math:`s_k = \sum_j a_j^{-k}`,
    :math:`T = \frac{3\,(s_1-1)}{8\,(p+2)}`, :math:`\alpha = \frac1p\sum_j a_j^2`,

    .. math:: \Big[\frac{T^2}3 + \frac{s_2 - \frac2p s_1 + 1}{64} - \frac{T(s_1-1)}{12} + \frac{(p-1)T^2}9\Big]
              \frac{1-4g\alpha}{1-6g\alpha},

    which for equal entries of a and small g is :math:`\frac{3(p-1)}{64(p+2)}`, up to 3 times the risk with a fixed layer.
    The result is NaN if an entry of `a` is not positive, or if `a` is so uneven that some directions decay faster.

    Parameters
    ----------
    a : the second layer at the end, positive and of mean 1; shape (p,)
    lr : learning rate of the first layer, below :math:`p/6\alpha`
    trained : whether the second layer is trained; if not, only the length of `a` matters

    >>> round(terminal_risk([1, 1, 1], lr=0.0, trained=False) * 64, 9), round(terminal_risk([1, 1, 1], lr=0.0) * 64, 9)
    (0.666666667, 1.2)
    """
    (a,) = as_float_arrays(a)
    p, g = a.size, lr / a.size
    limit = p / (6 * float(np.mean(a**2))) if trained else p / 6
    if lr >= limit:
        raise BadInput(f"lr must be below {limit:.4g}, above which zero risk is unstable; got {lr:g}. Give a smaller lr.")
    if not trained:
        return (p - 1) / (64 * p) * (1 + 2 * g * (5 - 4 / p) / (1 - 6 * g))
    if (a <= 0).any():
        return np.nan
    root = np.sqrt(a / p)
    # projection onto sum_j a_j v_j = 0
    across = np.eye(p) - np.outer(root, root)
    inverse = across @ np.diag(1 / a) @ across
    trace = np.trace(inverse)
    T, alpha = 3 * trace / (8 * (p + 2)), np.mean(a**2)
    B = inverse / 8 - T / 3 * across
    if np.linalg.eigvalsh(B)[0] < -1e-12:  # B is a Gram matrix: otherwise a direction decays faster than tau**-0.5
        return np.nan
    return float((T**2 / 3 + np.trace(B @ B)) * (1 - 4 * g * alpha) / (1 - 6 * g * alpha))


@checked
def end_rates(
    width: RealWidth | ArrayLike, lr: NotNegative | ArrayLike, noise: NotNegative | ArrayLike, ratio: float | ArrayLike = 0.0
) -> EndRates:
    r"""Decay rates of deviations from the end state with label noise, for :math:`\gamma\Delta/p \ll 1`.

    Here :math:`\gamma` is the learning rate, p the width, :math:`g = \gamma/p`, and :math:`\Delta` the variance of the label
    noise.

    The mean of a decays at the rate 3r, and the component shared by all students at the rate 4. The other rates are of order
    :math:`g\Delta`: differences between entries of a decay at :math:`2rg\Delta/(1-6g)`, and for small g the components in which
    students differ decay at :math:`\frac43 g\Delta` (trace) and :math:`\frac{4}{p+2} g\Delta` (traceless part), or at
    :math:`4g\Delta` and :math:`\frac4p g\Delta` if the second layer is fixed. So noise finally equalises the second layer.

    Parameters
    ----------
    width, lr, noise : parameters of the problem
    ratio : r, the learning rate of the second layer over that of the first; zero for a fixed second layer

    >>> rates = end_rates(width=4, lr=0.04, noise=0.5, ratio=2.0)
    >>> float(rates.mean), round(float(rates.differences), 5)
    (6.0, 0.02128)
    """
    p, lr, noise, ratio = np.broadcast_arrays(*as_float_arrays(width, lr, noise, ratio))
    slow, trained = lr / p * noise, ratio > 0
    second = np.where(trained, ratio, np.nan)
    return EndRates(
        3 * second,
        2 * second * slow / (1 - 6 * lr / p),
        np.full(p.shape, 4.0),
        slow * np.where(trained, 4 / 3, 4.0),
        slow * np.where(trained, 4 / (p + 2), 4 / p),
    )


@checked
def second_only_risk(width: RealWidth | ArrayLike) -> np.ndarray:
    r"""Final excess risk of phase retrieval by p students when only the second layer a is trained, as :math:`d\to\infty`.

    It is :math:`(p+3)/(p+2)`, at :math:`a = p/(p+2)`. Features of random units are uncorrelated with the teacher, so their best
    combination stays on the plateau.

    >>> float(second_only_risk(1))
    1.3333333333333333
    """
    (p,) = as_float_arrays(width)
    return (p + 3) / (p + 2)
