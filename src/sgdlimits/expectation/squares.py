"""Closed-form expectations for squared activations, a quadratic readout and a squared loss, at any width."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.expectation.base import Expectation, linearise_increment
from sgdlimits.expectation.gaussian import QuadraticSeries
from sgdlimits.expectation.slopes import RiskDerivatives
from sgdlimits.model.activation import is_square
from sgdlimits.statistics.frame import pad_frame
from sgdlimits.statistics.products import Moments


class Squares(Expectation):
    """Expectations in closed form, by matrix formulas, for squared activations, a quadratic readout and a squared loss.

    With the second layer a, its factor and the matrix R of the readout, the residual is the quadratic form of K = diag(factor
    a, -R) in the student and fixed fields (see `sgdlimits.expectation.gaussian.quadratic_forms`).
    """

    supported_models: ClassVar[str] = "squared activations, a quadratic readout, a squared loss and centred data"
    closed_covariance: ClassVar[bool] = True

    def supports(self, model):
        return (
            (model.network.plain and is_square(model.network.activation))
            and model.loss.quadratic
            and model.target.readout.quadratic(model.teachers) is not None
            and model.centred
        )

    def moments(self, model, a, law):
        series = self._series(model, a, law, order=2)
        p = a.shape[0]
        slope, second = self._gradient_factors(model, a)
        once, twice = series.second_moment(1), series.second_moment(2)[:p, :p]
        return Moments(
            loss=model.loss.weight * series.moment(2),
            gradient_fixed=slope[:, None] * once[:p, p:],
            gradient_field=slope[:, None] * once[:p, :p],
            gradient_gradient=slope[:, None] * twice * slope,
            gradient_second=second * jnp.diagonal(once)[:p],
        )

    def risk(self, model, a, law):
        """Compute the population risk in closed form, from traces of products of two matrices: residual form and covariance.

        With the residual D, the matrix K of its quadratic form and the covariance C of the fields, it is the loss weight times
        E[D^2] = tr(KC)^2 + 2 tr(KCKC) + noise. It is written out in elementwise sums, which cost less than products of small
        matrices in every step of many runs.
        """
        b, target, C = model.network.factor * a, model.target, law.blocks
        R = target.readout.quadratic(target.teachers)
        # K = diag(b, -R): the three terms of tr(KCKC) are those of two students, of a student and R, and of R twice.
        trace = (b * jnp.diagonal(C.students)).sum() - (R * C.fixed).sum()
        students = (b[:, None] * b * C.students**2).sum()
        both = (b[:, None, None] * C.cross[:, :, None] * R * C.cross[:, None, :]).sum()
        square = students - 2 * both + ((R @ C.fixed) * (R @ C.fixed).T).sum()
        return model.loss.weight * (trace**2 + 2 * square + target.noise)

    def covariance(self, model, a, law, increment):
        """Compute the covariance of the changes of the statistics by one sample, in closed form.

        Each product of gradients and fields is D or D^2 times v_i v_j for the residual D and a pair of fields v_i and v_j, so
        the moments needed are of order 2, 3 and 4 in D.
        """
        p, k = law.shape
        slope, second = self._gradient_factors(model, a)
        L = linearise_increment(increment, a, law.shape)
        row, column = np.triu_indices(p)
        unit, teacher = np.divmod(np.arange(p * k), k)
        pairs = np.concatenate([unit, row]), np.concatenate([p + teacher, column])
        # c1 and c2 are the coefficients of D v_i v_j and of D^2 v_i v_j in the increments, for these pairs.
        # Coefficients are divided by symmetry: (i, j) and (j, i) are one product, which the upper triangle counts once.
        of_fields = slope[:, None] * L.gradient_field + second * L.gradient_second[:, :, None] * np.eye(p)
        of_fixed = (slope[:, None] * L.gradient_fixed).reshape(len(of_fields), -1)
        of_squares = slope[:, None] * slope * L.gradient_gradient
        fold = lambda both: jnp.where(row == column, 1.0, 2.0) * ((both + jnp.swapaxes(both, 1, 2)) / 2)[:, row, column]
        c1 = jnp.concatenate([of_fixed, fold(of_fields)], axis=1)
        c2 = jnp.concatenate([jnp.zeros_like(of_fixed), fold(of_squares)], axis=1)
        series = self._series(model, a, law, order=4)
        mixed = c1 @ series.fourth_moment(3, *pairs) @ c2.T
        raw = c1 @ series.fourth_moment(2, *pairs) @ c1.T + mixed + mixed.T + c2 @ series.fourth_moment(4, *pairs) @ c2.T
        mean = c1 @ series.second_moment(1)[pairs] + c2 @ series.second_moment(2)[pairs]
        return raw - mean[:, None] * mean

    def risk_of_factor(self, model, a, law):
        rows = jnp.concatenate(law.factor)
        # Entries of F^T K F cancel down to rounding near recovery, and the risk, quadratic in them, down to its square.
        K = rows.T @ self._residual_form(model, a) @ rows
        series = QuadraticSeries.from_quadratic_form(K, jnp.eye(rows.shape[1]), model.target.noise, order=2)
        return model.loss.weight * series.moment(2)

    def slopes(self, model, a, S):
        r"""Compute gradient and Hessian of the risk in the units' weights in closed form, in an orthonormal basis.

        For inputs of variance v and loss weight w the excess risk is :math:`wv^2[(\mathrm{tr}K)^2 + 2\,\mathrm{tr}K^2]` with
        :math:`K = \sum_jb_js_js_j^\top - B^\top RB`, where unit j has the coefficient :math:`b_j` in the output and the
        coordinates :math:`s_j` (rows of S), B has the coordinates of the fixed directions, and R is the readout's matrix.
        """
        n, B = S.shape[1], pad_frame(model.frame, S.shape[1])
        b = model.network.factor * a
        scale = 4 * model.loss.weight * float(model.coordinates.variance) ** 2
        K = S.T @ (b[:, None] * S) - B.T @ np.asarray(model.target.readout.quadratic(model.teachers)) @ B
        trace, one, bb = np.trace(K), np.eye(n), b[:, None] * b
        own = b[:, None, None] * (trace * one + 2 * K)
        span = np.einsum("jl,jst->jslt", np.eye(len(b)), own)
        span += 2 * np.einsum("jl,js,lt->jslt", bb, S, S) + 2 * np.einsum("jl,ls,jt->jslt", bb, S, S)
        span += 2 * np.einsum("jl,st->jslt", bb * (S @ S.T), one)
        outside = np.diag(b * trace) + 2 * bb * (S @ S.T)
        return RiskDerivatives(scale * np.einsum("jst,jt->js", own, S), scale * span, scale * outside)

    @staticmethod
    def _residual_form(model, a) -> Float[Array, "n n"]:
        """Return the symmetric matrix of the residual as a quadratic form of the fields, the students first."""
        p, k = model.width, model.teachers
        K = jnp.zeros((p + k, p + k)).at[:p, :p].set(model.network.factor * jnp.diag(a))
        return K.at[p:, p:].set(-model.target.readout.quadratic(k))

    def _series(self, model, a, law, order) -> QuadraticSeries:
        """Return the power series in s of the moments that generate the residual's powers, up to the power `order`."""
        return QuadraticSeries.from_quadratic_form(self._residual_form(model, a), law.blocks.matrix, model.target.noise, order)

    @staticmethod
    def _gradient_factors(model, a):
        """Return the factors of residual times field in the loss gradients with respect to student fields and second layer.

        They are (slope, second) with dl/dlambda_j = slope_j D lambda_j and dl/da_j = second D lambda_j^2, for the residual D.
        """
        factor = model.network.factor
        return 4 * model.loss.weight * factor * a, 2 * model.loss.weight * factor


ClosedForm = Squares
