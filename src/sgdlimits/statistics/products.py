"""Products of the gradient and the fields of one sample, in which increments of the statistics are affine."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Array, Float

from sgdlimits.statistics.overlaps import Scalars


class Moments(NamedTuple):
    """Loss of one sample, products of its gradient with fields and with itself, and derivative in the scalars `a`; or means.

    For the loss l of student fields lambda and fixed fields lambda*, with the gradient G = dl/d lambda, the five attributes are
    l, G lambda*^T, G lambda^T, G G^T and dl/da, where a are the network scalars.
    """

    loss: Float[Array, "*batch"]
    gradient_fixed: Float[Array, "p k *batch"]
    gradient_field: Float[Array, "p p *batch"]
    gradient_gradient: Float[Array, "p p *batch"]
    gradient_second: Scalars
