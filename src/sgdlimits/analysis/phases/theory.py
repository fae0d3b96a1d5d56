"""What theory says about the phases of a dataset's problem, where there is one."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdlimits.errors import BadInput
from sgdlimits.problem.recognise import phase_retrieval, quadratic_network
from sgdlimits.theory.mediocrity.rates import linear_rates
from sgdlimits.theory.quadratic.plateau import plateau_rates, plateau_risk
from sgdlimits.theory.quadratic.terminal import terminal_decay
from sgdlimits.trajectory.record import from_json


def expected(dataset: xr.Dataset) -> dict[str, float]:
    """Values by the names of the variables of `Phases`: of quadratic networks, and of phase retrieval on the sphere."""
    try:
        problem, level = (from_json(dataset.attrs[name]) for name in ("problem", "level_parameters"))
        corrector = getattr(level, "corrector", True)
        if quadratic_network(problem):
            return _quadratic(problem, corrector)
        found = phase_retrieval(problem)
    except BadInput:
        return {}
    if not (found and corrector and found.sphere) or found.trains_second:
        return {}
    rates = linear_rates(found.p, found.lr, found.noise)
    values = {"growth": float(rates.M) * found.lr / found.p}
    return values | ({"decay": float(np.abs(rates.Q)) * found.lr / found.p} if found.p > 1 else {})


def _quadratic(problem, corrector: bool) -> dict[str, float]:
    rates = plateau_rates(problem, corrector=corrector)
    values = {"level": plateau_risk(problem, corrector=corrector), "growth": rates.rho}
    if problem.network.width > 1:
        values["decay"] = rates.Q
    try:
        end = terminal_decay(problem, corrector=corrector)
    except BadInput:
        return values
    return values | ({"tail_rate": end.rate} if end.law == "exponential" else {"tail_exponent": 2.0})
