r"""The plateau of a quadratic network, at any learning rate and noise [3]_.

With :math:`p` students, :math:`p^*` teachers, :math:`\kappa = 2\eta/p`, :math:`b = (p+4)/(p+2)`, :math:`c = 1 + 2/p^*` and the
variance :math:`\Delta` of the label noise, students without overlaps, :math:`M = 0` and :math:`Q = q\,1`, stay so, and
:math:`s = q\,(p+2)/p` obeys

.. math:: \dot s = \frac{8\eta}{p}\, s\, h(s), \qquad h(s) = 1 - s + \kappa\,(c + \Delta - 2s + b s^2).

The plateau is the smaller root of h, where :math:`\sqrt\delta = -h'` and
:math:`\delta = (1+2\kappa)^2 - 4\kappa b\,(1 + \kappa(c+\Delta))`. It tends to s = 1, (10), for small learning rates. Around it

.. math:: \omega_\rho = \frac{4\eta}{p}(c - s), \qquad \omega_Q = \frac{16\eta}{p(p+2)}\, s\sqrt\delta, \qquad
          \omega_q = \frac{8\eta}{p}\, s\sqrt\delta

are the growth of overlaps with teachers, the decay of overlaps and of differences of norms between students, and the decay of
the mean norm. For small rates they are :math:`8\eta/(pp^*)`, :math:`16\eta/(p(p+2))`, (12), and :math:`8\eta/p`.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from sgdlimits.domain import NotNegativeInTime, Teachers, Width, checked
from sgdlimits.errors import BadInput
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.problem.recognise import QuadraticNetwork, recognise_quadratic_network


class Coefficients(QuadraticNetwork):
    """Parameters of a quadratic network, with the coefficients of the equation h(s) = 0 for its plateau's norm s."""

    @property
    def kappa(self) -> float:
        r"""Twice the learning rate :math:`\eta` over the width p, :math:`\kappa = 2\eta/p`."""
        return 2 * self.lr / self.p

    @property
    def b(self) -> float:
        """Coefficient :math:`b = (p+4)/(p+2)` of :math:`s^2` in the plateau equation.

        Here s is the relative squared norm and p the width.
        """
        return (self.p + 4) / (self.p + 2)

    @property
    def c(self) -> float:
        """Risk :math:`c = 1 + 2/p^*` of zero weights without noise, for :math:`p^*` teachers.

        It is a coefficient of the plateau equation.
        """
        return 1 + 2 / self.k

    @property
    def discriminant(self) -> float:
        """Discriminant of the quadratic equation for the plateau's norm; negative if there is no plateau."""
        return (1 + 2 * self.kappa) ** 2 - 4 * self.kappa * self.b * (1 + self.kappa * (self.c + self.noise))

    @property
    def slope(self) -> float:
        r"""Slope :math:`\sqrt\delta = -h'` of the plateau equation h(s) = 0 at its root.

        Raises `BadInput` if there is no plateau.
        """
        if self.discriminant < 0:
            raise BadInput(
                f"there is no plateau at lr = {self.lr:g}: the norms diverge from every start. "
                f"Use an lr of at most {compute_largest_rates(self).plateau:.6g}."
            )
        return sqrt(self.discriminant)

    @property
    def s(self) -> float:
        """Squared norm on the plateau, relative to its value at small learning rates."""
        # the form of the smaller root without cancellation, valid at kappa = 0
        return 2 * (1 + self.kappa * (self.c + self.noise)) / (1 + 2 * self.kappa + self.slope)

    def larger_root(self, first: float) -> float:
        """Return the larger root of the plateau equation, above which norms diverge.

        Raise `BadInput` if the relative squared norm `first` at the start is not below that root.
        """
        root = self.s + self.slope / (self.kappa * self.b)
        unit = self.p / (self.p + 2)
        if first >= root:
            raise BadInput(
                f"norm must be below {root * unit:.6g}, above which norms diverge at lr = {self.lr:g}; got {first * unit:g}. "
                "Use a smaller norm, or a smaller lr."
            )
        return root


class PlateauRates(NamedTuple):
    """Rates on the plateau per unit of t: growth of teacher overlaps, and decay of student overlaps and of the mean norm."""

    rho: float
    Q: float
    norm: float


class LargestRates(NamedTuple):
    """Largest learning rates for which the plateau exists, for which it is unstable, and for which the solution is stable."""

    plateau: float
    escape: float
    solution: float


def read_coefficients(problem: ProjectionProblem, corrector: bool = True) -> Coefficients:
    """Return the parameters of a quadratic network, or raise `BadInput` for another problem.

    Without the corrector, the part of the drift quadratic in the learning rate, the learning rate only sets the unit of time.
    Then it is set to zero in the result, and callers multiply rates by the learning rate.
    """
    found = recognise_quadratic_network(problem)
    if found is None:
        name = getattr(problem, "name", type(problem).__name__)
        raise BadInput(f"problem must be a quadratic network; got {name}. Use presets.quadratic_network.")
    return Coefficients(*found) if corrector else Coefficients(*found)._replace(lr=0.0)


@checked
def plateau_norm(problem: ProjectionProblem, *, corrector: bool = True) -> float:
    r"""Squared norm :math:`\bar Q` of students on the plateau.

    Without the corrector, the part of the drift quadratic in the learning rate, it is p/(p + 2), (10), for the width p.

    >>> import sgdlimits as sl
    >>> problem = sl.presets.quadratic_network(width=3, teachers=3, lr=0.3)
    >>> round(plateau_norm(problem), 4), plateau_norm(problem, corrector=False)
    (0.7681, 0.6)
    """
    at = read_coefficients(problem, corrector)
    return at.s * at.p / (at.p + 2)


@checked
def plateau_risk(problem: ProjectionProblem, *, corrector: bool = True) -> float:
    r"""Population risk of a quadratic network on its plateau, including the label noise.

    The notation below is that of `theory.quadratic.plateau`.

    It is :math:`c + \Delta - s(2-s)\,p/(p+2)`.

    >>> import sgdlimits as sl
    >>> round(plateau_risk(sl.presets.quadratic_network(width=6, teachers=3, lr=0.01)), 4)
    0.9167
    """
    at = read_coefficients(problem, corrector)
    return at.c + at.noise - at.s * (2 - at.s) * at.p / (at.p + 2)


@checked
def plateau_rates(problem: ProjectionProblem, *, corrector: bool = True) -> PlateauRates:
    r"""Rates of growth and decay of the overlaps on the plateau, per unit of t.

    Without the corrector, the part of the drift quadratic in the learning rate, they are those of (12).

    They are :math:`\omega_\rho, \omega_Q, \omega_q`.

    The first is negative where the plateau is stable and nothing is learnt: above `largest_lr(...).escape`.

    >>> import sgdlimits as sl
    >>> problem = sl.presets.quadratic_network(width=6, teachers=3, lr=0.01)
    >>> rates = plateau_rates(problem, corrector=False)
    >>> [round(rate / problem.rate.item(), 6) for rate in rates]              # 8/18, 16/48, 8/6
    [0.444444, 0.333333, 1.333333]
    >>> round(plateau_rates(problem).rho / rates.rho, 4)
    0.9954
    """
    at, lr = read_coefficients(problem, corrector), float(problem.algorithm.lr_sample)
    norm = 8 * lr / at.p * at.s * at.slope
    return PlateauRates(4 * lr / at.p * (at.c - at.s), 2 * norm / (at.p + 2), norm)


@checked
def largest_lr(width: Width, teachers: Teachers, noise: NotNegativeInTime = 0.0) -> LargestRates:
    r"""Largest learning rates for which the plateau exists, for which it is unstable, and for which the solution is stable.

    Here p is the width, and :math:`p^*` the number of teachers.

    Above `plateau` the norms diverge, whatever the start. Above `escape` overlaps with teachers decay on the plateau, or there
    is none. Without noise zero risk is unstable above `solution`, :math:`pp^*/(4(p^*+2))`; it is 0 for fewer students than
    teachers, which cannot reach it. Without noise `escape` and `solution` agree for :math:`p = p^*`, and `solution` is the
    smaller one for :math:`p > p^* > 1`.

    >>> [round(lr, 4) for lr in largest_lr(3, 3)], [round(lr, 4) for lr in largest_lr(6, 3)]
    ([0.4624, 0.45, 0.45], [1.136, 1.1077, 0.9])
    """
    return compute_largest_rates(Coefficients(width, teachers, 0.0, float(noise)))


def compute_largest_rates(at: Coefficients) -> LargestRates:
    """Compute the largest learning rates, as `largest_lr` does, from checked parameters.

    With C = c + noise the plateau has the relative squared norm s at the learning rate (p/2) (s - 1)/(C - 2s + b s^2), which
    increases with s up to `top`; p is the width, and b and c are properties of `Coefficients`.
    """
    # maximum of the rate as a function of s
    top = 1 + sqrt((at.b - 2 + at.c + at.noise) / at.b)
    rate = lambda s: at.p / 2 * (s - 1) / (at.c + at.noise - 2 * s + at.b * s**2)
    solution = at.p * at.k / (4 * (at.k + 2)) if at.p >= at.k else 0.0
    return LargestRates(rate(top), rate(min(top, at.c)), solution)


@checked
def fastest_escape_lr(width: Width, teachers: Teachers, noise: NotNegativeInTime = 0.0) -> float:
    r"""Learning rate at which overlaps with teachers grow fastest on the plateau, per sample.

    Below, :math:`\eta` is the learning rate and p the width; c and s are those of `Coefficients`.

    It maximises :math:`\omega_\rho \propto \kappa\,(c - s)`. As p enters besides :math:`\kappa = 2\eta/p` only through
    :math:`b = (p+4)/(p+2)`, it is proportional to p for wide students.

    >>> [round(fastest_escape_lr(width, 3) / width, 4) for width in (3, 6, 100)]
    [0.0982, 0.1204, 0.1848]
    """
    at = Coefficients(width, teachers, 0.0, float(noise))
    C = at.c + at.noise
    half, square = at.b * at.c - C, at.b * (1 + at.c) - 2
    # positive root of the stationarity condition, a quadratic equation in s
    s = (half + sqrt(half**2 + square * ((1 + at.c) * C - 2 * at.c))) / square
    return at.p / 2 * (s - 1) / (C - 2 * s + at.b * s**2)
