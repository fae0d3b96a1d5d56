"""Finite datasets: n samples with fixed labels, drawn once for each run, over which SGD passes again and again."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx

from sgdlimits.domain import Size, checked
from sgdlimits.errors import BadInput, shorten
from sgdlimits.inputs.base import Inputs
from sgdlimits.inputs.make import gaussian
from sgdlimits.inputs.rows import Rows
from sgdlimits.inputs.sampler import Sampler
from sgdlimits.part import Part, has_schedules

ORDERS = ("cyclic", "shuffled", "random")


class TrainingSet(NamedTuple):
    """Number n of samples in the dataset of each run, and the order in which SGD takes them."""

    n: int
    order: str


@checked
class Reused(Part):
    """A dataset of `n` samples with fixed labels, drawn once for each run, that SGD passes over again and again.

    Give it as the inputs of a problem, `data=Reused(n)`. The levels `Chain(d)` and `SGD(d)` support it, for any d: `n` may be
    smaller or larger than d. Datasets of `simulate` have the training risk `train_risk` beside the population risk `risk`.

    Parameters
    ----------
    n : number of samples
    order : order in which SGD takes the samples: "cyclic", the same in every epoch; "shuffled", a fresh permutation in each
        epoch; "random", each drawn with replacement. A batch of b samples is b consecutive ones, so that a batch may continue
        in the next epoch if b does not divide n
    base : law of the samples, such as a `mixture`; None takes standard normal inputs

    See Also
    --------
    sgdlimits.Chain : the exact law of the overlaps, with n times min(d, n + p + k) stored numbers per run

    Examples
    --------
    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.1).replace(data=sl.Reused(50))
    >>> run = sl.simulate(problem, sl.Chain(d=100), sl.RandomInit(d=100), t_max=5, save=3, progress=False)
    >>> run.epoch.values.tolist()
    [0.0, 5.0, 10.0]
    """

    n: Size = eqx.field(static=True)
    order: str = eqx.field(static=True)
    base: Inputs

    def __init__(self, n: Size, order: str = "cyclic", base: Inputs | None = None) -> None:
        self.n, self.order, self.base = n, order, gaussian() if base is None else base
        if order not in ORDERS:
            raise BadInput(f"order must be one of {', '.join(ORDERS)}; got {shorten(order)}. Give one of these.")
        if isinstance(self.base, (Rows, Sampler)):
            raise BadInput(
                f"a dataset is drawn from a Gaussian law, and not from {type(self.base).__name__}. "
                "Give base=inputs.gaussian(), or train on your rows with data=inputs.Rows(X, y) alone."
            )
        if self.base.has_noise:
            raise BadInput("input noise is fresh at each step, and cannot be part of a dataset. Give inputs without noise.")
        if has_schedules(self.base):
            raise BadInput("the law of a dataset is that of one draw at the start, and cannot change with time. Give numbers.")

    @property
    def training_set(self) -> TrainingSet:
        """Size and order of the dataset, without the law of its samples."""
        return TrainingSet(self.n, self.order)
