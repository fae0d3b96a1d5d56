r"""A lower bound of the risk around a state, by its value and its slopes there: what rules out that a run has reached a risk.

Units have coordinates :math:`S_i` in an orthonormal frame, in which an input of class c is :math:`u \sim N(b_c, \sigma^2I)`;
the network is :math:`f = \sum_i a_is(S_i\cdot u)`, and the loss l is convex in f. For any other state, with changes
:math:`\Delta` and the same inputs,

.. math:: R' \ge R + E[l'(f)(f' - f)] = R + \nabla R\cdot\Delta + \sum_i\big( a_iE[l'e_i] + \Delta a_iE[l'(s_i' - s_i)]\big) ,

where :math:`e_i` is what s bends, :math:`s_i' - s_i - \dot s_i\,\Delta S_i\cdot u`. The sum is quadratic. With
:math:`v_c^2 = \sigma^2 + |b_c|^2` its second term is at most
:math:`\sqrt{E l'^2\,E v_c^2}\,\max|\dot s|\,|\Delta a_i||\Delta S_i|`.
For the cross-entropy :math:`E l'^2 \le R/2`, by Pinsker's inequality, and for squares of weight w it is 4wR. The first term of
smooth units is at most :math:`\frac12\max|\ddot s|\sqrt{3\,E l'^2\,E v_c^4}\,|\Delta S_i|^2`.

With slopes :math:`\alpha` below zero and :math:`\beta` above, :math:`e_i/(\beta - \alpha)` is the size of the field where that
changed its sign, and zero elsewhere. Its mean in a class is the remainder of a function of :math:`S_i` whose Hessian is at most
:math:`v_c^2/(\sqrt{2\pi}\sigma|S_i|)`, and at most :math:`v_c|\Delta S_i|`. The one is used for changes up to a part of
:math:`|S_i|`, the other beyond: with the best part,

.. math:: E_c|e_i| \le |\beta - \alpha|\Big(\frac{v_c^2}{2\sqrt{2\pi}\sigma} + v_c\Big)\frac{|\Delta S_i|^2}{|S_i|} .

The cross-entropy of a class with the label y has :math:`-y \le l' \le 1 - y`, of which one side lowers the risk: that of the
sign of :math:`a_i(\beta - \alpha)`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from sgdlimits.model.loss import CrossEntropy
from sgdlimits.model.sample import Model
from sgdlimits.model.target import ClassLabels
from sgdlimits.statistics.overlaps import Overlaps


class Support(NamedTuple):
    """A number is at least `value` plus the sum of (slope - bend times change) times change, however a state changes."""

    value: Float[Array, ""]
    slope: PyTree
    bend: PyTree


def network_support(rule: Any, model: Model, a: Float[Array, " p"], S: Float[Array, "p n"]) -> Support | None:
    """That of a network whose risk is computed by a rule; None where the loss, or what its units bend, has no such bound."""
    network, loss, readout = cast(Any, model.network), cast(Any, model.loss), cast(Any, model.target.readout)
    classes = isinstance(loss, CrossEntropy) and isinstance(readout, ClassLabels)
    steepest = network.activation.steepest if network.plain and (classes or loss.quadratic) else None
    if steepest is None or (network.activation.kinked and not classes):
        return None
    risk = lambda a, S: rule.risk(model, Overlaps(a, S[:, : model.teachers] @ model.frame.T, S @ S.T))
    value, slope = jax.value_and_grad(risk, argnums=(0, 1))(a, S)
    data, unit, (most, bends) = model.data, network.activation, steepest
    squares = data.sigma**2 + (data.centre(model.frame, cast(Any, np.arange(data.classes))) ** 2).sum(0)
    typical = jnp.sqrt(value / 2 if classes else 4 * loss.weight * value)
    if unit.kinked:
        labels = jnp.asarray(readout.labels)
        lowers = jnp.where((a * (unit.right - unit.left) > 0)[:, None], labels, 1 - labels)
        turned = (lowers * data.weights) @ (squares / (2 * np.sqrt(2 * np.pi) * data.sigma) + jnp.sqrt(squares))
        rows = abs(unit.right - unit.left) * turned * jnp.abs(a) / jnp.linalg.norm(S, axis=1)
    else:
        rows = typical * bends / 2 * jnp.sqrt(3 * (data.weights @ squares**2)) * jnp.abs(a)
    both = typical * most * jnp.sqrt(data.weights @ squares) / 2
    bend = jnp.full_like(a, both), jnp.broadcast_to((both + rows)[:, None], S.shape)
    return Support(value, slope, jax.tree.map(lambda leaf: abs(network.factor) * leaf, bend))
