r"""Lower bounds of the risk around a state, by a value and slopes there: what rules out that a run has reached a risk.

Units have coordinates :math:`S_i` in an orthonormal frame, in which an input of class c is :math:`u \sim N(b_c, \sigma^2I)`;
the network is :math:`f = \sum_i a_is(S_i\cdot u)`, and the loss l is convex in f. For any other state, with changes
:math:`\Delta` and the same inputs,

.. math:: R' \ge R + E[l'(f)(f' - f)] = R + \nabla R\cdot\Delta + \sum_i\big( a_iE[l'e_i] + \Delta a_iE[l'(s_i' - s_i)]\big) ,

where :math:`e_i` is what s bends, :math:`s_i' - s_i - \dot s_i\,\Delta S_i\cdot u`. The sum is quadratic. With
:math:`v_c^2 = \sigma^2 + |b_c|^2` its second term is at most
:math:`\sqrt{E l'^2\,E v_c^2}\,\max|\dot s|\,|\Delta a_i||\Delta S_i|`.
For the cross-entropy :math:`E l'^2 \le R/2`, by Pinsker's inequality, and for squares of weight w it is 4wR. The first term of
smooth units is at most :math:`\frac12\max|\ddot s|\sqrt{3\,E l'^2\,E v_c^4}\,|\Delta S_i|^2`.

With slopes :math:`\alpha` below zero and :math:`\beta` above, :math:`e_i/(\beta - \alpha)` is the size of the new field where
that changed its sign, and zero elsewhere. In a class let :math:`S_i` have length 1 and :math:`\sigma = 1`, and the field
:math:`\lambda` the mean m. A change along :math:`S_i` and one across it, of length q, make the new field
:math:`t\lambda + w`, where w does not depend on :math:`\lambda`, and :math:`E w^2 \le V^2q^2` with
:math:`V^2 = 1 + |b_c|^2 - m^2`. For t > 0 the mean of :math:`|e_i|` is at most :math:`Aq^2/t`, since the density of
:math:`\lambda` is at most :math:`1/\sqrt{2\pi}`, and at most Cq; for t < 0 at most :math:`U|t| + Cq`:

.. math:: A = \frac{V^2}{2\sqrt{2\pi}}, \qquad C = V\,\Phi(|m|), \qquad U = \sqrt{1 + m^2} .

The largest ratio of these to :math:`(t - 1)^2 + q^2` is :math:`\frac12(A + \sqrt{A^2 + C^2})` for t > 0. For t < 0 it is not
larger, or it is :math:`(U^2 + C^2)/4U`. In general the ratio has the factor :math:`\sigma/|S_i|`.
Where :math:`\sigma = 0`, a field :math:`\lambda` of a class that changes its sign is, by its change :math:`\Delta`, at most
:math:`|\Delta| - |\lambda| \le \Delta^2/4|\lambda|`, and what is outside the span of the means changes nothing.
The cross-entropy of a class with the label y has :math:`-y \le l' \le 1 - y`, of which one side lowers the risk: that of the
sign of :math:`a_i(\beta - \alpha)`.

A mean loss is at least the loss of the mean output :math:`\bar f_c` of each class, which is closed for piecewise linear units:
:math:`R \ge \sum_cw_cl(\bar f_c)`. The same holds for this, with :math:`l'(\bar f_c)` for l'.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Float, PyTree

from sgdlimits.model.loss import CrossEntropy
from sgdlimits.model.sample import Model
from sgdlimits.model.target import ClassLabels
from sgdlimits.statistics.frame import with_frame
from sgdlimits.statistics.law import FieldLaw

SMALL = 1e-8
"""Fields count as so large; a change that is wrong by that is within what bounds leave to rounding."""


class Support(NamedTuple):
    """A number is at least `value` plus the sum of (slope - bend times change) times change, however a state changes."""

    value: Float[Array, ""]
    slope: PyTree
    bend: PyTree


def network_support(expectation: Any, model: Model, a: Float[Array, " p"], S: Float[Array, "p n"]) -> Support | None:
    """Quadratic lower bound on the risk of a two-layer network, or None if the loss or activation admits none."""
    network, loss, readout = cast(Any, model.network), cast(Any, model.loss), cast(Any, model.target.readout)
    classes = isinstance(loss, CrossEntropy) and isinstance(readout, ClassLabels)
    steepest = network.activation.steepest if network.plain and (classes or loss.quadratic) else None
    if steepest is None or (network.activation.kinked and not classes):
        return None
    risk = lambda a, S: expectation.risk(model, a, model.law(with_frame(a, S, model.frame)))
    value, slope = jax.value_and_grad(risk, argnums=(0, 1))(a, S)
    law, (most, bends) = model.coordinates, steepest
    weights, squares = law.weights, _squares(law)
    typical = jnp.sqrt(value / 2 if classes else 4 * loss.weight * value)
    if network.activation.kinked:
        rows = jnp.abs(a) * (weights * _lowers(model, a, jnp.asarray(readout.labels)) * _turned(model, S)).sum(1)
    else:
        rows = typical * bends / 2 * jnp.sqrt(3 * (weights @ squares**2)) * jnp.abs(a)
    return _of_network(model, value, slope, typical * most * jnp.sqrt(weights @ squares) / 2, rows)


def mean_support(model: Model, a: Float[Array, " p"], S: Float[Array, "p n"]) -> Support:
    """That of labels of classes, cross-entropy and piecewise linear units, by the mean output of each class."""
    network, labels, law = cast(Any, model.network), jnp.asarray(cast(Any, model.target.readout).labels), model.coordinates
    unit, weights, centres, sigma = network.activation, law.weights, law.means.fixed, jnp.sqrt(law.variance)

    def mean_loss(a, S):
        length = sigma * jnp.linalg.norm(S, axis=1)[:, None]
        mean = S[:, : len(centres)] @ centres
        positive = mean * ndtr(mean / length) + length * jax.scipy.stats.norm.pdf(mean / length)
        output = network.factor * a @ (unit.left * mean + (unit.right - unit.left) * positive)
        return weights @ model.loss(output, labels), jax.nn.sigmoid(output) - labels

    (value, tilt), slope = jax.value_and_grad(mean_loss, argnums=(0, 1), has_aux=True)(a, S)
    both = weights @ (jnp.abs(tilt) * jnp.sqrt(_squares(law))) * unit.steepest[0] / 2
    rows = jnp.abs(a) * (weights * jnp.abs(tilt) * _lowers(model, a, tilt < 0) * _turned(model, S)).sum(1)
    return _of_network(model, value, slope, both, rows)


def _of_network(model: Model, value: Array, slope: PyTree, both: Array, rows: Float[Array, " p"]) -> Support:
    """With bends that are those of both layers together, and of each row of the first."""
    acts = np.arange(slope[1].shape[1]) < model.teachers if model.on_means else True
    bend = jnp.full_like(slope[0], both), jnp.broadcast_to(jnp.where(acts, (both + rows)[:, None], 0.0), slope[1].shape)
    return Support(value, slope, jax.tree.map(lambda leaf: abs(cast(Any, model.network).factor) * leaf, bend))


def _squares(law: FieldLaw) -> Float[Array, " classes"]:
    """The mean square of an input along its class's mean and one direction more."""
    return law.variance + (law.means.fixed**2).sum(0)


def _lowers(model: Model, a: Float[Array, " p"], below: Float[Array, " classes"]) -> Float[Array, "p classes"]:
    """How much of the slope of a loss, of size `below` on one side and the rest of 1 on the other, lowers what a unit bends."""
    unit = cast(Any, model.network).activation
    return jnp.where((a * (unit.right - unit.left) > 0)[:, None], below, 1 - below)


def _turned(model: Model, S: Float[Array, "p n"]) -> Float[Array, "p classes"]:
    """The largest mean of what each unit bends in each class, over the square of its change."""
    unit, law = cast(Any, model.network).activation, model.coordinates
    centres = law.means.fixed
    if model.on_means:
        fields = jnp.maximum(jnp.abs(S[:, : len(centres)] @ centres), SMALL)
        return abs(unit.right - unit.left) * (centres**2).sum(0) / (4 * fields)
    sigma = jnp.sqrt(law.variance)
    length = sigma * jnp.linalg.norm(S, axis=1)[:, None]
    m = S[:, : len(centres)] @ centres / length
    across = 1 + ((centres / sigma) ** 2).sum(0) - m**2
    A, C, U = across / np.sqrt(8 * np.pi), jnp.sqrt(across) * ndtr(jnp.abs(m)), jnp.sqrt(1 + m**2)
    ahead, back = (A + jnp.hypot(A, C)) / 2, (U**2 + C**2) / (4 * U)
    largest = jnp.where(2 * ahead < U, jnp.maximum(ahead, back), ahead)
    return abs(unit.right - unit.left) * law.variance / length * largest
