r"""Several tasks in one problem: readouts that depend on the class of a sample, and teachers that rotate.

A task is a class of the data. Its probability may change with time: sequential training, replay and interleaving are schedules
of the class probabilities. The label of task c is :math:`y = r_c(T_c\lambda^*)`, its own readout :math:`r_c` of the fixed
fields transformed by a matrix :math:`T_c`, so that teachers with any overlap, 1 included, share one orthonormal frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.checks import check_each
from sgdlimits.domain import RealArrayInTime, checked
from sgdlimits.errors import BadInput, is_traced, shorten
from sgdlimits.model.target import Readout
from sgdlimits.part import is_schedule
from sgdlimits.schedule import Schedule
from sgdlimits.statistics.trees import as_floats

MIN_SINGULAR_VALUE_RATIO = 1e-9
"""Minimum ratio of the smallest to the largest singular value of a matrix in `turns` for which it counts as invertible."""


def _check_readout(name: str, value: Any) -> Readout:
    """Return the value if it is a `Readout` (a label as a function of fields), or raise `BadInput`."""
    if not isinstance(value, Readout):
        raise BadInput(
            f"{name} must be readouts, such as CommitteeReadout('erf'); got {shorten(value)}. Give a readout for each class."
        )
    return value


Readouts = Annotated[Sequence[Readout], check_each(_check_readout)]


@checked
class ClassReadouts(Readout):
    r"""Readout with a separate function :math:`r_c` for each class c of the data: the label is :math:`r_c(T_c\lambda^*)`.

    Here :math:`\lambda^*` are the k fixed fields, and :math:`T_c` is a matrix that mixes them.

    Parameters
    ----------
    readouts : the readouts :math:`r_c`, one for each class
    turns : the matrices :math:`T_c`, shape (classes, k, k), invertible, which may change with time; None for identities

    >>> import sgdlimits as sl
    >>> first = sl.CommitteeReadout("linear", [1.0, 0.0])
    >>> both = ClassReadouts([first, first], turns=[[[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.8], [-0.8, 0.6]]])
    >>> float(both(jnp.array([1.0, 2.0]), c=0)), round(float(both(jnp.array([1.0, 2.0]), c=1)), 12)
    (0.5, 1.1)
    """

    readouts: tuple[Readout, ...]
    turns: Float[Array, "classes k k"] | None

    def __init__(self, readouts: Readouts, turns: RealArrayInTime | None = None) -> None:
        self.readouts = tuple(readouts)
        if not self.readouts:
            raise BadInput("readouts must have one entry for each class; got none. Give, say, [CommitteeReadout('erf')] * 2.")
        self.turns = None if turns is None else as_floats(turns)
        _check_turns(self.turns, len(self.readouts))

    @property
    def classes(self) -> int:
        """Number of classes that the readout distinguishes."""
        return len(self.readouts)

    @property
    def smooth(self):
        return all(each.smooth for each in self.readouts)

    def turn_fields(self, fixed: Float[Array, "k *batch"], i: int) -> Float[Array, "k *batch"]:
        """Apply the matrix of class i in `turns`, if `turns` is given, to the fixed fields."""
        if self.turns is None:
            return fixed
        if is_schedule(self.turns):
            raise BadInput("the readout changes with time. Take the problem at one time, problem.at(t).")
        return (self.turns[i].reshape(*self.turns[i].shape, *(1 for _ in fixed.shape[1:])) * fixed[None]).sum(1)

    def __call__(self, fixed, c=0):
        label = self.readouts[0](self.turn_fields(fixed, 0))
        for i, readout in enumerate(self.readouts[1:], 1):
            label = jnp.where(jnp.asarray(c) == i, readout(self.turn_fields(fixed, i)), label)
        return label


class Rotation(Schedule):
    """Schedule of the matrix of a rotation at constant speed, which maps the fields of two fixed directions to rotated ones.

    Parameters
    ----------
    speed : angular velocity, in radians per unit of time t (samples per dimension)

    >>> Rotation(np.pi / 2)(1.0).round(12).tolist()
    [[[0.0, 1.0], [-1.0, 0.0]]]
    """

    speed: Any = eqx.field(converter=as_floats)

    def __call__(self, t):
        angle = self.speed * t
        return jnp.stack([jnp.stack([jnp.cos(angle), jnp.sin(angle)]), jnp.stack([-jnp.sin(angle), jnp.cos(angle)])])[None]


def _check_turns(turns: Any, classes: int) -> None:
    """Raise `BadInput` unless `turns` has one invertible matrix for each class."""
    if turns is None:
        return
    shape = tuple(turns.shape)
    if len(shape) != 3 or shape[0] != classes or shape[1] != shape[2]:
        raise BadInput(
            f"turns must have shape ({classes}, k, k), a matrix for each class; got {shape}. Give one "
            f"k-by-k matrix for each class."
        )
    for each in turns.examples() if is_schedule(turns) else [] if is_traced(turns) else [turns]:
        values = np.linalg.svd(np.asarray(each), compute_uv=False)
        if not (values[:, -1] > MIN_SINGULAR_VALUE_RATIO * values[:, 0]).all():
            raise BadInput(
                f"turns must be invertible matrices; got {np.asarray(each).tolist()}. Give, for instance, rotations."
            )
