"""Random variates from one counter-based generator, for every process and kernel."""

import sgdlimits._x64
from sgdlimits.kernel.random.stream import MAX_NORMALS, Purpose, Stream
