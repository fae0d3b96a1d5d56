"""Consistency checks between the parts of a problem."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sgdlimits.algorithm.base import Algorithm, check_memory
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.inputs import Inputs
from sgdlimits.model.loss import Loss
from sgdlimits.model.network import RESERVED_NAMES, AnyNetwork
from sgdlimits.model.target import ClassLabels, Target


def check_parts(data: Inputs, target: Target, network: AnyNetwork, loss: Callable, algorithm: Algorithm) -> None:
    """Raise `BadInput` if the data, target, network, loss and algorithm of a problem do not fit together."""
    data.check(target.teachers)
    if isinstance(target.readout, ClassLabels) and not is_traced(target.readout.labels):
        labels = np.shape(target.readout.labels)
        if labels != (data.classes,):
            raise BadInput(
                f"labels must be {data.classes} numbers, one for each class of the data; got shape {labels}. "
                "Give one label for each class."
            )
    if isinstance(loss, Loss):
        loss.check(data, target, network.shape)
    check_memory(algorithm, RESERVED_NAMES | {"a"})
    names, known = algorithm.trained_scalars, () if network.plain else tuple(network.axes)
    if not isinstance(names, bool) and not set(names) <= set(known):
        scalars = (
            f"has the scalars {', '.join(known)}. Give rates for these." if known else "has one second layer. Give one rate."
        )
        raise BadInput(f"lr_second has rates for {', '.join(names)}, but the network {scalars}")
