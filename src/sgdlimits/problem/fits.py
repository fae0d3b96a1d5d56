"""Consistency checks between the parts of a problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sgdlimits.algorithm.base import Algorithm, check_memory
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.inputs import Blocks, Inputs, Mixture
from sgdlimits.inputs.blocks import block_grams
from sgdlimits.model.loss import Loss
from sgdlimits.model.network import RESERVED_NAMES, AnyNetwork
from sgdlimits.model.target import ClassLabels, Target
from sgdlimits.model.tasks import ClassReadouts
from sgdlimits.part import at_start, is_schedule


def check_parts(data: Inputs, target: Target, network: AnyNetwork, loss: Callable, algorithm: Algorithm) -> None:
    """Raise `BadInput` if the data, target, network, loss and algorithm of a problem do not fit together."""
    data.check(target.teachers)
    classes = data.classes
    _check_blocks(data, target, network)
    if isinstance(target.readout, ClassLabels) and not is_traced(target.readout.labels):
        labels = np.shape(target.readout.labels)
        if labels != (classes,):
            raise BadInput(
                f"labels must be {classes} numbers, one for each class of the data; got shape {labels}. "
                "Give one label for each class."
            )
    _check_tasks(data, classes, target, network)
    if isinstance(loss, Loss):
        loss.check(data, at_start(target), network.shape)
    check_memory(algorithm, RESERVED_NAMES | {"a"})
    names, known = algorithm.trained_scalars, () if network.has_array_scalars else tuple(network.axes)
    if not isinstance(names, bool) and not set(names) <= set(known):
        scalars = (
            f"has the scalars {', '.join(known)}. Give rates for these." if known else "has one second layer. Give one rate."
        )
        raise BadInput(f"lr_second has rates for {', '.join(names)}, but the network {scalars}")


def _check_blocks(data: Inputs, target: Target, network: AnyNetwork) -> None:
    """Raise `BadInput` if the blocks of the inputs do not fit the Gram matrix of the fixed directions, or the network."""
    shape = np.shape(target.gram)
    if len(shape) == 3 and shape[0] != (data.blocks or 1):
        raise BadInput(f"gram has {shape[0]} blocks, and the inputs have {data.blocks or 1}. Give one matrix a block.")
    if len(shape) == 3 and data.blocks is None:
        raise BadInput("gram has an axis of blocks, and the inputs have none. Give the k-by-k Gram matrix.")
    if data.blocks is not None and not network.has_array_scalars:
        raise BadInput("blocks of variances need a network with a single second layer. Give TwoLayer(...) without heads.")
    if not isinstance(data, Blocks) or is_traced(target.gram) or is_traced(data.variance):
        return
    gram = np.asarray(block_grams(data, target.gram))
    variance: Any = data.variance
    for each in variance.examples() if is_schedule(variance) else [variance]:
        P = np.einsum("cb,bij->cij", np.asarray(each), gram.reshape(len(data.shares), *gram.shape[-2:]))
        values = np.linalg.eigvalsh(P)
        if (values[:, 0] <= 1e-12 * values[:, -1]).any():
            raise BadInput(
                "the fields of the fixed directions are dependent in a class, where their variance is 0 in some block. "
                "Give a variance above 0, or gram with the directions in other blocks."
            )


def _check_tasks(data: Inputs, classes: int, target: Target, network: AnyNetwork) -> None:
    """Raise `BadInput` if readouts or heads by class do not match the classes of the data."""
    readout, heads = target.readout, network.head_count
    readouts, turns = (readout.classes, readout.turns) if isinstance(readout, ClassReadouts) else (None, None)
    if readouts is None and heads == 1:
        return
    if not isinstance(data, (Mixture, Blocks)):
        raise BadInput(f"readouts and heads of classes need a mixture; got {type(data).__name__}. Make it with mixture(means).")
    if readouts is not None and readouts != classes:
        raise BadInput(f"readouts must be {classes}, one for each class of the data; got {readouts}. Give one a class.")
    if heads not in (1, classes):
        raise BadInput(f"heads must be 1, or {classes}, the number of classes of the data; got {heads}. Give 1 or that number.")
    if turns is not None and turns.shape[1] != target.teachers:
        k, rows = target.teachers, turns.shape[1]
        raise BadInput(
            f"turns must be matrices of {k} rows, one for each fixed direction; got {rows}. Give shape ({readouts}, {k}, {k})."
        )
