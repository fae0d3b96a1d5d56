"""Muon: momentum with orthogonalised steps."""

from __future__ import annotations

from collections.abc import Mapping

import equinox as eqx

from sgdlimits.algorithm.base import Algorithm, Descent
from sgdlimits.domain import MomentumInTime, NotNegativeInTime, Rate, Rates, Size, checked
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.part import as_source
from sgdlimits.statistics.trees import as_floats


@checked
class Muon(Descent):
    r"""Muon: momentum, with steps along the matrix with orthonormal rows that is nearest to the velocity.

    .. math:: V \leftarrow \beta V + g, \qquad u \leftarrow u - \frac{\text{lr}}{\sqrt d}\,(VV^\top)^{-1/2} V ,

    with the weights u, the velocity V and the mean gradient g of the batch.

    Parameters
    ----------
    lr : length of the step of each unit, times :math:`\sqrt d`, so that lr is comparable to the learning rate of SGD
    beta : momentum coefficient, from 0 to below 1
    lr_second, ridge, sphere, batch : as for `OnePassSGD`; the ridge is decoupled, and the second layer has plain momentum

    Notes ----- The polar factor is exact, momentum is not of Nesterov type, and steps have no factor for the shape of V. By
    contrast, optax's `muon` stops after five Newton-Schulz iterations, and has the other two by default. The algorithm stores
    V/d as `velocity`. The root is that of a Gram matrix of the p units, so the chain of the overlaps is exact. With fewer
    samples than units and no momentum, V has lower rank, and the inverse root is restricted to its range. As d grows there is
    an ODE for beta = 0 only: otherwise V averages over about 1/(1 - beta) samples, whose gradient noise does not vanish.
    """

    beta: MomentumInTime = eqx.field(converter=as_floats)
    stores_velocity: bool = eqx.field(static=True, init=False)
    """Whether a velocity is stored; this must not depend on a traced value."""

    def __init__(
        self, lr: Rate, beta: MomentumInTime = 0.0, *, lr_second: Rates | None = None, ridge: NotNegativeInTime = 0.0,
        sphere: bool = False, batch: Size = 1,
    ) -> None:  # fmt: skip
        self.lr, self.lr_second, self.ridge, self.sphere, self.batch = lr, lr_second, ridge, sphere, batch
        self.beta, self.stores_velocity = beta, is_traced(beta) or float(beta) != 0

    @property
    def memory(self) -> Mapping[str, str]:  # type: ignore[override]
        """Initial values of the groups of directions stored beside the students, by name: the velocity begins at zero."""
        return {"velocity": "zero"} if self.stores_velocity else {}

    def step(self, now):
        # without momentum there is no memory to read or to return
        velocity = self.beta * now["velocity"] + now.gradient() if self.stores_velocity else now.gradient()
        push, decay = (
            self.scale_by_minus_lr(velocity.orthogonalise()),
            (self.ridge * now.inv_d) * self.scale_by_minus_lr(now.student),
        )
        student = self.normalise_on_sphere(now.student + push + decay)
        return {"student": student, "velocity": velocity} if self.stores_velocity else {"student": student}

    @property
    def limit(self) -> Algorithm:
        if self.stores_velocity:
            raise BadInput(f"Muon has a limit as d grows for beta=0 only; got {as_source(self.beta)}. Use Chain(d), at any d.")
        return self
