"""Equations of a problem as LaTeX: `equations_of_problem`, by kind of problem, and the public function `latex`."""

from __future__ import annotations

from functools import singledispatch

import numpy as np

from sgdlimits.analysis.equations.base import Equations, Row
from sgdlimits.analysis.equations.choose import choose_equations, choose_noise_equations
from sgdlimits.analysis.equations.noise import NOISE_HEADING
from sgdlimits.analysis.equations.schedules import write_out_schedules
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.part import is_schedule
from sgdlimits.problem.base import Problem
from sgdlimits.problem.projection import ProjectionProblem, check_fresh
from sgdlimits.problem.spiked import SpikedTensor


@singledispatch
def equations_of_problem(problem: Problem) -> Equations:
    """Return the ODE of a problem as lines of LaTeX; register a function for a new type of problem."""
    raise BadInput(
        f"no LaTeX is known for the equations of {type(problem).__name__}. Register a function that "
        f"writes it, by equations_of_problem.register."
    )


@singledispatch
def noise_of_problem_latex(problem: Problem) -> tuple[Row, ...]:
    """Return the covariance of a problem's increments as lines of LaTeX; register a function for a new type of problem."""
    raise BadInput(
        f"LaTeX of the noise of {type(problem).__name__} is not supported. Compute the covariance in "
        f"numbers with problem.covariance."
    )


def _constant_second_layer(problem: ProjectionProblem) -> float | None:
    """Return the value of the second layer if it is fixed and equal for all units, else None."""
    law = problem.initial
    constant = problem.network.plain and not problem.trains_second and law.second_spread == 0
    return law.second if constant and np.ndim(law.second) == 0 else None


@equations_of_problem.register
def _(problem: ProjectionProblem) -> Equations:
    check_fresh(problem)
    return choose_equations(problem.model, problem.algorithm, _constant_second_layer(problem))


@noise_of_problem_latex.register
def _(problem: ProjectionProblem) -> tuple[Row, ...]:
    return choose_noise_equations(problem.model, problem.algorithm, _constant_second_layer(problem))


@noise_of_problem_latex.register
def _(problem: SpikedTensor) -> tuple[Row, ...]:
    k, second = "k R^{2k-2}", r"k \left(k - 1\right) R^{2k-4}"
    return (
        NOISE_HEADING,
        Row(r"\Sigma^{mm}", rf"4 \gamma^{{2}} \left({k} + {second} m^{{2}}\right)"),
        Row(r"\Sigma^{mr}", rf"8 \gamma^{{2}} {second} m r_{{2}}"),
        Row(r"\Sigma^{rr}", rf"16 \gamma^{{2}} r_{{2}} \left({k} + {second} r_{{2}}\right)"),
    )


@equations_of_problem.register
def _(problem: SpikedTensor) -> Equations:
    # a traced ridge is shown, as it may not be zero
    penalty = (r" - \alpha m", r" + 2 \alpha") if is_traced(problem.ridge) or problem.ridge else ("", "")
    pull = r"2 k \lambda m^{k-1} - 2 k R^{2k-2} m"
    ode = (
        Row(r"\frac{dm}{dt}", rf"\gamma \left({pull}{penalty[0]}\right)"),
        Row(r"\frac{dr_{2}}{dt}", rf"-\gamma \left(4 k R^{{2k-2}}{penalty[1]}\right) r_{{2}} + 4 k \gamma^{{2}} R^{{2k-2}}"),
    )
    where = Row("R", r"\sqrt{m^{2} + r_{2}}"), Row(r"m = x \cdot v, \quad r_{2} = |x - m v|^{2}")
    letters = {"order": "k", "snr": r"\lambda", "lr": r"\gamma", **({"ridge": r"\alpha"} if penalty[0] else {})}
    # schedules are written out later, traced values not at all
    known = lambda value: value if is_schedule(value) else None if is_traced(value) else float(value)
    return Equations(ode, where, tuple((word, letter, known(getattr(problem, word))) for word, letter in letters.items()))


@checked
def latex(problem: Problem, *, noise: bool = False) -> str:
    r"""Return the LaTeX of the ODE that a problem's statistics follow as :math:`d\to\infty`.

    Expectations are in closed form for squared units with any quadratic readout, erf units, polynomials, piecewise linear units
    (all but one integral over four fields), classes without noise and the spiked tensor. Other expectations have a name, with
    their definition below. The value of a second layer that is fixed and equal for all units is inserted, and so is the norm 1
    on the sphere. Time is in samples per dimension, and a schedule is a function of t. Algorithms whose limit is plain SGD have
    the equations of plain SGD; other algorithms have the ODE of a general step.

    Parameters
    ----------
    problem : any problem of the package, or one registered with `equations_of_problem`
    noise : whether to add the covariance of the increments of one sample, the noise of the SDE at finite d. The covariance is
        in closed form for squared units at any width, one polynomial unit with one direction, and the spiked tensor

    Returns
    -------
    str
        an `aligned` environment: the equations, the definitions of their symbols, and the values of the parameters

    See also `problem.drift`, which evaluates the same ODE. In a notebook a problem is displayed by these equations.

    >>> import sgdlimits as sl
    >>> print(sl.latex(sl.presets.phase_retrieval(lr=0.1, noise=0.2)))
    \begin{aligned}
    \frac{dm}{dt} &= 4 \gamma m \left(1 - m^{2}\right) - 24 \gamma^{2} m \left(1 - m^{2}\right) - 2 \gamma^{2} \Delta m \\
    & \text{where} \\
    & m = M_{11}, \quad Q_{11} = 1 \text{ on the sphere} \\
    & \text{with } \text{lr } \gamma = 0.1,\quad \text{noise } \Delta = 0.2
    \end{aligned}
    """
    equations = equations_of_problem(problem)
    if noise:
        equations = equations._replace(noise=noise_of_problem_latex(problem))
    return write_out_schedules(equations).latex()
