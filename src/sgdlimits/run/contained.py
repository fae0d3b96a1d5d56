"""Files from others: an HDF5 file is read only where all of it is in itself and fits into memory.

HDF5 can keep the numbers of a variable in other files, by external storage, external links or virtual layouts, and reads
whatever the reader may read. A variable may say that it has more numbers than any memory, and groups may hold themselves.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sgdlimits.errors import BadInput
from sgdlimits.size import describe_excess

if TYPE_CHECKING:
    import h5py

MAX_DEPTH = 8
"""Groups inside groups: files of the package have at most one level of them."""


def check_contained(group: h5py.Group, depth: int = 0) -> None:
    """Raise `BadInput` where a group refers to other files or paths, or holds more numbers than this machine has memory for."""
    import h5py

    if depth > MAX_DEPTH:
        raise BadInput("it has groups inside groups without end. Give a dataset that was saved.")
    for name in group:
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise BadInput(f"its {name!r} is a link to another place, which is not followed. Give a dataset that was saved.")
        item = group[name]
        if isinstance(item, h5py.Group):
            check_contained(item, depth + 1)
        elif isinstance(item, h5py.Dataset):
            if item.is_virtual or item.id.get_create_plist().get_external_count():
                raise BadInput(
                    f"its variable {name!r} is kept in another file, which is not read. Give a dataset that was saved."
                )
            if words := describe_excess(math.prod(map(float, item.shape or ())) * item.dtype.itemsize / 8):
                raise BadInput(f"its variable {name!r} takes {words}. Give a smaller dataset.")
