"""Random numbers: one counter-based generator for every level and engine."""

import sgdlimits._x64
from sgdlimits.kernel.random.stream import MAX_NORMALS, Purpose, Stream
