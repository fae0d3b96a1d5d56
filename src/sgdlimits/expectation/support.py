r"""A lower bound of the risk around a state, by its value and its slopes there: what rules out that a run has reached a risk.

Units have coordinates :math:`S_i` in an orthonormal frame, in which an input of class c is :math:`u \sim N(b_c, \sigma^2I)`;
the network is :math:`f = \sum_i a_is(S_i\cdot u)`, s has slopes :math:`\alpha` below zero and :math:`\beta` above, and the loss
l is convex in f. For any other state, with changes :math:`\Delta` and the same inputs,

.. math:: R' \ge R + E[l'(f)(f' - f)] = R + \nabla R\cdot\Delta + \sum_i\big( a_iE[l'e_i] + \Delta a_iE[l'(s_i' - s_i)]\big) .

The rest is quadratic. With :math:`v_c^2 = \sigma^2 + |b_c|^2` its second term is at most :math:`\sqrt{E l'^2\,E v_c^2}\,
\max(|\alpha|, |\beta|)\,|\Delta a_i||\Delta S_i|`, and :math:`E l'^2 \le R/2` for the cross-entropy, by Pinsker's inequality.
In its first, :math:`e_i/(\beta - \alpha)` is the size of the field where that changed its sign, and zero elsewhere. The mean
in a class is the remainder of a function of :math:`S_i` whose Hessian is at most :math:`v_c^2/(\sqrt{2\pi}\sigma|S_i|)`, and at
most :math:`v_c|\Delta S_i|`. The one is used for changes up to a part of :math:`|S_i|`, the other beyond: with the best part,

.. math:: E_c|e_i| \le |\beta - \alpha|\Big(\frac{v_c^2}{2\sqrt{2\pi}\sigma} + v_c\Big)\frac{|\Delta S_i|^2}{|S_i|} .

Where y is the label of the class, :math:`-y \le l' \le 1 - y`, of which one side lowers the risk: that of the sign of
:math:`a_i(\beta - \alpha)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from sgdlimits.model.sample import Model


class Support(NamedTuple):
    """A number is at least `value` plus the sum of (slope - bend times change) times change, however a state changes."""

    value: Float[Array, ""]
    slope: PyTree
    bend: PyTree


def class_support(risk: Callable, model: Model, a: Float[Array, " p"], S: Float[Array, "p n"]) -> Support:
    """That of the cross-entropy of piecewise linear units, from their `risk`, a function of (a, S)."""
    network, target, data = cast(Any, model.network), cast(Any, model.target), model.data
    unit = network.activation
    value, slope = jax.value_and_grad(risk, argnums=(0, 1))(a, S)
    squares, labels = data.sigma**2 + (data.centre(model.frame, jnp.arange(data.classes)) ** 2).sum(0), target.readout.labels
    lowers = jnp.where((a * (unit.right - unit.left) > 0)[:, None], labels, 1 - labels)
    turned = (lowers * data.weights) @ (squares / (2 * np.sqrt(2 * np.pi) * data.sigma) + jnp.sqrt(squares))
    both = jnp.sqrt(value / 2 * (data.weights @ squares)) * max(abs(unit.left), abs(unit.right)) / 2
    rows = both + abs(unit.right - unit.left) * turned * jnp.abs(a) / jnp.linalg.norm(S, axis=1)
    bend = jnp.full_like(a, both), jnp.broadcast_to(rows[:, None], S.shape)
    return Support(value, slope, jax.tree.map(lambda leaf: abs(network.factor) * leaf, bend))
