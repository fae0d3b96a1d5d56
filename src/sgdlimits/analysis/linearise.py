"""The drift near a point, by automatic differentiation."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np

from sgdlimits.problem.overlaps import Overlaps, from_vector, to_vector
from sgdlimits.problem.projection import ProjectionProblem


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


def linearise(problem: ProjectionProblem, point: Overlaps, *, corrector: bool = True) -> Linearisation:
    """Linearise a problem's ODE at a point.

    Parameters
    ----------
    problem : any projection problem
    point : statistics of one run, without a batch axis; any point, fixed or not
    corrector : whether the drift contains the effect of the step size, as in `ODE`

    Notes
    -----
    The coordinates are those of `problem.covariance`: M row by row, the upper triangle of Q row by row, then `a` if it is
    trained. On the sphere the norms Q_jj do not move and are left out.

    Examples
    --------
    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.1, noise=0.5)
    >>> saddle = sl.Overlaps(a=[1.0], M=[[0.0]], Q=[[1.0]])
    >>> rate = sl.linearise(problem, saddle).rates[0].real / problem.rate         # (50): 4 (1 - 6 lr) - 2 lr noise
    >>> round(float(rate), 10)
    1.5
    """
    names, drift, matrix = _derivatives(problem, point, corrector)
    matrix = np.asarray(matrix)
    rates, modes = np.linalg.eig(matrix)
    order = np.argsort(-rates.real, kind="stable")
    return Linearisation(names, np.asarray(drift), matrix, rates[order], modes[:, order])


def _derivatives(problem: ProjectionProblem, point: Overlaps, corrector: bool):
    p, k = point.M.shape
    trained, sphere = problem.algorithm.trains_second, problem.algorithm.sphere
    pairs = list(zip(*np.triu_indices(p), strict=True))
    names = [f"M[{j},{r}]" for j in range(p) for r in range(k)]
    names += [f"Q[{j},{l}]" for j, l in pairs]
    names += [f"a[{j}]" for j in range(p)] if trained else []
    free = np.flatnonzero([not (sphere and name in {f"Q[{j},{j}]" for j in range(p)}) for name in names])
    drift, matrix = _jacobian(problem, point, corrector, trained)
    return tuple(names[i] for i in free), drift[free], matrix[np.ix_(free, free)]


@eqx.filter_jit
def _jacobian(problem: ProjectionProblem, point: Overlaps, corrector: bool, trained: bool):
    def slope(vector):
        stats = from_vector(vector, point, trained)
        return to_vector(problem.drift(stats) if corrector else problem.drift_parts(stats)[0], trained)

    vector = to_vector(point, trained)
    return slope(vector), jax.jacfwd(slope)(vector)
