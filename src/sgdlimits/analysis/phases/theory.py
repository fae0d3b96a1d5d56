"""What theory says about the phases of a dataset's problem, where there is one."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdlimits.errors import BadInput
from sgdlimits.trajectory.record import from_json


def expected(dataset: xr.Dataset) -> dict[str, float]:
    """Values by the names of the variables of `Phases`: of quadratic networks, and of phase retrieval on the sphere."""
    if dataset.attrs["problem_name"] not in ("quadratic_network", "phase_retrieval"):
        return {}
    problem = from_json(dataset.attrs["problem"])
    corrector = getattr(from_json(dataset.attrs["level_parameters"]), "corrector", True)
    try:
        if dataset.attrs["problem_name"] == "quadratic_network":
            return _quadratic(problem, corrector)
        return _phase_retrieval(problem) if corrector else {}
    except BadInput:
        return {}


def _quadratic(problem, corrector: bool) -> dict[str, float]:
    from sgdlimits.theory.quadratic.plateau import plateau_rates, plateau_risk
    from sgdlimits.theory.quadratic.terminal import terminal_decay

    rates = plateau_rates(problem, corrector=corrector)
    values = {"level": plateau_risk(problem, corrector=corrector), "growth": rates.rho}
    if problem.directions.width > 1:
        values["decay"] = rates.Q
    try:
        end = terminal_decay(problem, corrector=corrector)
    except BadInput:
        return values
    return values | ({"tail_rate": end.rate} if end.law == "exponential" else {"tail_exponent": 2.0})


def _phase_retrieval(problem) -> dict[str, float]:
    from sgdlimits.theory.mediocrity.rates import linear_rates

    if not problem.algorithm.sphere or problem.algorithm.trains_second:
        return {}
    width = problem.directions.width
    rates = linear_rates(width, float(problem.algorithm.lr), float(problem.target.noise))
    values = {"growth": float(rates.M) * float(problem.rate)}
    return values | ({"decay": float(np.abs(rates.Q)) * float(problem.rate)} if width > 1 else {})
