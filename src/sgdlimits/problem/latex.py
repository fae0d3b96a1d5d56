"""The ODE of a problem as LaTeX."""

from __future__ import annotations

from sgdlimits.domain import checked
from sgdlimits.problem.base import Problem


@checked
def latex(problem: Problem) -> str:
    r"""The ODE of a problem's statistics as :math:`d\to\infty`, in LaTeX.

    It is closed where the expectations are: squared units and any quadratic readout, erf units, polynomials, piecewise linear
    units (all but one integral over four fields), classes without noise, the spiked tensor. Otherwise expectations have a name,
    and what they are of is written below. A second layer that is not trained and starts at one number is put in, and so is the
    norm 1 on the sphere. Time is samples per dimension. Algorithms whose limit is plain SGD have its equations; others have the
    form that all share.

    Parameters
    ----------
    problem : what is learnt

    Returns
    -------
    str
        an `aligned` environment: the equations, what their letters stand for, and the numbers behind them

    See also `problem.drift`, which computes the same. In a notebook a problem shows itself that way.

    >>> import sgdlimits as sl
    >>> print(sl.latex(sl.presets.phase_retrieval(lr=0.1, noise=0.2)))
    \begin{aligned}
    \frac{dm}{dt} &= 4 \gamma m \left(1 - m^{2}\right) - 24 \gamma^{2} m \left(1 - m^{2}\right) - 2 \gamma^{2} \Delta m \\
    & \text{where} \\
    & m = M_{11}, \quad Q_{11} = 1 \text{ on the sphere} \\
    & \text{with } \text{lr } \gamma = 0.1,\quad \text{noise } \Delta = 0.2
    \end{aligned}
    """
    return problem.equations().latex()
