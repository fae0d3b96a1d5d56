"""Safety check of HDF5 files before they are read: no references to other files, and small enough for memory.

HDF5 can store the values of a variable in other files, by external storage, external links or virtual layouts, and reads any
file that the process may read. A variable may declare more values than fit into memory, and a group may contain itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sgdlimits.errors import BadInput
from sgdlimits.size import describe_excess

if TYPE_CHECKING:
    import h5py

MAX_GROUP_DEPTH = 8
"""Maximum nesting of groups in an HDF5 file that is read; files written by the package have at most one level."""


def check_contained(group: h5py.Group, depth: int = 0) -> None:
    """Raise `BadInput` if an HDF5 group refers to other files or paths, or has a variable too large for memory.

    Subgroups are checked recursively; `depth` is the nesting of this group.
    """
    import h5py

    # Hard links can make a group a member of itself, so that the recursion would not end.
    if depth > MAX_GROUP_DEPTH:
        raise BadInput("the groups of the file are nested too deeply. Give a file that sgdlimits.save wrote.")
    for name in group:
        # Hard links are names of objects in this file; soft and external links may lead anywhere.
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise BadInput(
                f"its member {name!r} is a link to another file or path, which is not followed. Give a file that "
                f"sgdlimits.save wrote."
            )
        item = group[name]
        if isinstance(item, h5py.Group):
            check_contained(item, depth + 1)
        elif isinstance(item, h5py.Dataset):
            if item.is_virtual or item.id.get_create_plist().get_external_count():
                raise BadInput(
                    f"its variable {name!r} is kept in another file, which is not read. Give a file that sgdlimits.save wrote."
                )
            # The product is taken in floats: shapes of a crafted file overflow any integer type.
            if words := describe_excess(math.prod(map(float, item.shape or ())) * item.dtype.itemsize / 8):
                raise BadInput(f"its variable {name!r} takes {words}. Give a smaller dataset.")
