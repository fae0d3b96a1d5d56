"""Which engine computes a sweep."""

from __future__ import annotations

from typing import Any

from sgdlimits.errors import BadInput
from sgdlimits.sweeps.cluster import Dask
from sgdlimits.sweeps.engine import Engine, Here
from sgdlimits.sweeps.pool import Pool


def as_engine(engine: Any) -> Engine:
    """An engine from what users give: None, a number of processes, a scheduler's address, or an engine."""
    if engine is None:
        return Here()
    if isinstance(engine, Engine):
        return engine
    if isinstance(engine, int) and not isinstance(engine, bool) and engine >= 1:
        return Pool(engine)
    if isinstance(engine, str):
        return Dask.of(engine)
    raise BadInput(
        f"engine must be a number of processes, the address of a dask scheduler, or 'local' or 'slurm'; got {engine!r}. "
        "Leave it out to compute in this process."
    )
