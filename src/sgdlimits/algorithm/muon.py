"""Muon: steps of orthogonal directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import equinox as eqx

from sgdlimits.algorithm.base import Algorithm, Descent
from sgdlimits.checks import number
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput
from sgdlimits.part import as_source


@checked
class Muon(Descent):
    r"""Muon: momentum, and steps along the nearest matrix with orthonormal rows.

    .. math:: V \leftarrow \beta V + g, \qquad u \leftarrow u - \frac{\text{lr}}{\sqrt d}\,(VV^\top)^{-1/2} V .

    Parameters
    ----------
    lr : the length of each unit's step is this over :math:`\sqrt d`, so that it acts as the learning rate of SGD does
    beta : how much of V stays, from 0 to below 1
    lr_second, ridge, sphere, batch : as for `OnePassSGD`; the ridge is decoupled, and the second layer has plain momentum

    Notes
    -----
    The polar factor is exact, the momentum is not Nesterov's, and steps have no factor for the shape of V: optax's `muon`
    stops after five Newton-Schulz iterations and has the other two by default.
    What is remembered is `velocity`, V over d. The root is one of a p-by-p Gram matrix, so the chain is exact; with fewer
    samples than units and no memory, V has no full rank, and the root is that on its range. As d grows there is an ODE for
    beta = 0 only: otherwise V remembers about 1/(1 - beta) samples, whose gradients do not average out.
    """

    beta: Annotated[float, number(at_least=0, below=1)] = eqx.field(static=True, converter=float, default=0.0)

    uses_gram = True

    @property
    def memory(self) -> Mapping[str, str]:  # type: ignore[override]
        """What is remembered beside the students, and how it begins."""
        return {"velocity": "zero"} if self.beta else {}

    def step(self, now):
        velocity = self.beta * now["velocity"] + now.gradient() if self.beta else now.gradient()
        push, decay = self.downhill(velocity.orthogonal()), (self.ridge * now.inv_d) * self.downhill(now.student)
        step = {"student": self.normalise_on_sphere(now.student + push + decay), "velocity": velocity}
        return step if self.beta else {"student": step["student"]}

    @property
    def limit(self) -> Algorithm:
        if self.beta:
            raise BadInput(f"Muon has a limit as d grows for beta=0 only; got {as_source(self.beta)}. Use Chain(d), at any d.")
        return self
