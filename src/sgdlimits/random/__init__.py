"""Random numbers: one counter-based generator for every level and engine."""

import sgdlimits._x64  # noqa: F401  (first: arrays are double precision)
from sgdlimits.random.stream import MOST_NORMALS, Purpose, Stream

__all__ = ["MOST_NORMALS", "Purpose", "Stream"]
