"""The products of one sample's gradient and fields that increments are made of."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Array, Float

from sgdlimits.statistics.overlaps import Scalars


class Moments(NamedTuple):
    r"""Products over one sample, or their expectations, with G = dl/d lambda and loss l; `gradient_second` is dl/da."""

    loss: Float[Array, "*batch"]
    gradient_fixed: Float[Array, "p k *batch"]
    gradient_field: Float[Array, "p p *batch"]
    gradient_gradient: Float[Array, "p p *batch"]
    gradient_second: Scalars
