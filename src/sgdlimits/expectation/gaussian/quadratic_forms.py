r"""Moments of quadratic forms of Gaussian vectors, in matrix form at any width.

For a squared activation and squared loss the residual is a quadratic form :math:`D = v^\top K v + \epsilon` of the
fields :math:`v \sim N(0, C)`, with independent noise :math:`\epsilon \sim N(0, \Delta)`. All expectations of SGD are moments
:math:`E[D^n\, v v \cdots]`, which follow from one generating function: under the weight :math:`e^{sD}` the fields
stay Gaussian,

.. math:: E[e^{sD} f(v)] = Z(s)\, E_{v \sim N(0, C_s)} f(v), \qquad
          Z(s) = e^{s^2\Delta/2} \det(1 - 2sCK)^{-1/2}, \qquad C_s = (1 - 2sCK)^{-1} C,

so that with the coefficients :math:`z_m = [s^m] Z` and :math:`C_m = [s^m] C_s = 2^m (CK)^m C`

.. math:: E[D^n] = n!\, z_n, \qquad E[D^n v v^\top] = n! \sum_{a+b=n} z_a C_b,

and :math:`E[D^n v_i v_j v_k v_l]` is Wick's sum over :math:`z_a C_b C_c`, a + b + c = n.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


class QuadraticSeries(eqx.Module):
    """Power series of the moments of a residual D = v^T K v + noise, a quadratic form of Gaussian fields v.

    All moments E[D^n v v ...] follow from the series of Z(s) = E[e^(sD)] and of the covariance C_s under that weight.

    Parameters
    ----------
    z : coefficients of Z, which are E[D^n] / n!
    C : coefficients of C_s, which are 2^n (C K)^n C for fields of covariance C

    >>> import jax.numpy as jnp
    >>> series = QuadraticSeries.from_quadratic_form(jnp.array([[1.]]), jnp.array([[1.]]), 0., order=3)
    >>> [float(series.moment(n)) for n in range(4)]       # E[z^(2n)] = 1, 1, 3, 15
    [1.0, 1.0, 3.0, 15.0]
    """

    z: tuple[Float[Array, ""], ...]
    C: tuple[Float[Array, "n n"], ...]

    @classmethod
    def from_quadratic_form(
        cls, K: Float[Array, "n n"], C: Float[Array, "n n"], noise: Float[Array, ""] | float, order: int
    ) -> QuadraticSeries:
        """Compute the series up to the power `order`, from the symmetric form K, the covariance C and the noise variance."""
        step = 2 * C @ K
        powers, traces = [C], []
        for _ in range(order):
            traces.append(2 * (K * powers[-1]).sum())  # of the powers of step, for symmetric K
            powers.append(step @ powers[-1])
        # log det by traces of powers: log Z = sum_m tr((2 C K)^m) s^m / (2 m) + noise s^2 / 2
        log_z = [trace / (2 * m) for m, trace in enumerate(traces, start=1)]
        if order >= 2:
            log_z[1] = log_z[1] + noise / 2
        return cls(tuple(_exponentiate_series(log_z)), tuple(powers))

    def moment(self, n: int) -> Float[Array, ""]:
        """Return the moment E[D^n] of the residual D = v^T K v + noise."""
        return math.factorial(n) * self.z[n]

    def second_moment(self, n: int) -> Float[Array, "n n"]:
        """Return the matrix E[D^n v v^T] for the fields v and the residual D = v^T K v + noise."""
        return math.factorial(n) * sum((self.z[a] * self.C[n - a] for a in range(n + 1)), jnp.zeros(()))

    def fourth_moment(self, n: int, i: Int[np.ndarray, " s"], j: Int[np.ndarray, " s"]) -> Float[Array, "s s"]:
        """Return E[D^n v_i v_j v_k v_l] for pairs (i, j), (k, l) of the fields v and the residual D = v^T K v + noise.

        Entry (s, t) has (i, j) of pair s and (k, l) of pair t.
        """
        # Wick's three pairings: (ij)(kl), (ik)(jl), (il)(jk), each a product of a left and a right factor.
        rows = [(C[i, j], C[i], C[j]) for C in self.C[: n + 1]]
        left = [(pair[:, None], at_i[:, i], at_i[:, j]) for pair, at_i, _ in rows]
        right = [(pair, at_j[:, j], at_j[:, i]) for pair, _, at_j in rows]
        rest = lambda b, term: sum((self.z[n - b - c] * right[c][term] for c in range(n + 1 - b)), jnp.zeros(()))
        wick = (left[b][term] * rest(b, term) for b in range(n + 1) for term in range(3))
        return math.factorial(n) * sum(wick, jnp.zeros(()))


def _exponentiate_series(log_z: list[Float[Array, ""]]) -> list[Float[Array, ""]]:
    """Return the power series of exp(f), given the coefficients of f from first order on.

    The recurrence for the coefficients z_n of exp(f) is n z_n = sum_m m log_z_m z_(n-m).
    """
    z = [jnp.ones(())]
    for n in range(1, len(log_z) + 1):
        z.append(sum((m * log_z[m - 1] * z[n - m] for m in range(1, n + 1)), jnp.zeros(())) / n)
    return z
