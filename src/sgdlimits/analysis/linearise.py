"""The drift near a point, by automatic differentiation."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from sgdlimits.level.ode import vector_field
from sgdlimits.problem.base import Problem


@dataclass(frozen=True)
class Linearisation:
    r"""The drift to first order around a point, :math:`\dot y = b + J (y - y_0)`, in samples per dimension.

    Attributes
    ----------
    names : of the n free coordinates, such as "M[0,0]", "Q[0,1]" or "a[0]"
    drift : b, which is zero at a fixed point, shape (n,)
    matrix : J, shape (n, n)
    rates : eigenvalues of J, the largest real part first, shape (n,)
    modes : right eigenvectors, one a column, in the order of `rates`, shape (n, n)
    """

    names: tuple[str, ...]
    drift: np.ndarray
    matrix: np.ndarray
    rates: np.ndarray
    modes: np.ndarray

    @property
    def stable(self) -> bool:
        """Whether every small departure decays."""
        return bool(self.rates[0].real < 0)


def linearise(problem: Problem, point: PyTree, *, corrector: bool = True) -> Linearisation:
    """Linearise a problem's ODE at a point.

    Parameters
    ----------
    problem : any problem
    point : statistics of one run, without a batch axis; any point, fixed or not
    corrector : whether the drift contains the effect of the step size, as in `ODE`

    Notes
    -----
    The coordinates are those of `problem.covariance`: for projection problems M row by row, the upper triangle of Q row by
    row, then `a` if it is trained. On the sphere the norms Q_jj do not move and are left out.

    Examples
    --------
    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.1, noise=0.5)
    >>> saddle = sl.Overlaps(a=[1.0], M=[[0.0]], Q=[[1.0]])
    >>> rate = sl.linearise(problem, saddle).rates[0].real / problem.rate         # (50): 4 (1 - 6 lr) - 2 lr noise
    >>> round(float(rate), 10)
    1.5
    """
    free = np.flatnonzero(problem.moves(point))
    drift, matrix = (np.asarray(part)[free] for part in _jacobian(problem, point, corrector))
    rates, modes = np.linalg.eig(matrix[:, free])
    order = np.argsort(-rates.real, kind="stable")
    names = tuple(np.array(problem.names(point))[free].tolist())
    return Linearisation(names, drift, matrix[:, free], rates[order], modes[:, order])


@eqx.filter_jit
def _jacobian(problem: Problem, point: PyTree, corrector: bool):
    slope = vector_field(problem, corrector)
    along = lambda vector: problem.vector(slope(problem.from_vector(vector, point)))
    vector = problem.vector(point)
    return along(vector), jax.jacfwd(along)(vector)
