"""Whether the parts of a problem belong together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sgdlimits.algorithm.base import Algorithm, check_memory
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.inputs import Inputs
from sgdlimits.model.loss import Loss
from sgdlimits.model.network import TAKEN, AnyNetwork
from sgdlimits.model.target import ClassLabels, Target
from sgdlimits.part import begun


def check_parts(data: Inputs, target: Target, network: AnyNetwork, loss: Callable, algorithm: Algorithm) -> None:
    """Raise `BadInput` where data, target, loss and outputs do not fit each other, or learning rates not the scalars."""
    data.check(target.teachers)
    if isinstance(target.readout, ClassLabels) and not is_traced(target.readout.labels):
        labels = np.shape(target.readout.labels)
        if labels != (data.classes,):
            raise BadInput(
                f"labels must be {data.classes} numbers, one for each class of the data; got shape {labels}. Give such labels."
            )
    if isinstance(loss, Loss):
        loss.check(data, begun(target), network.shape)
    check_memory(algorithm, TAKEN | {"a"})
    names, known = algorithm.trained_scalars, () if network.plain else tuple(network.axes)
    if not isinstance(names, bool) and not set(names) <= set(known):
        which = (
            f"has the scalars {', '.join(known)}. Give rates for these." if known else "has one second layer. Give one rate."
        )
        raise BadInput(f"lr_second has rates for {', '.join(names)}, but the network {which}")
