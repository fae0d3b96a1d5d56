"""Files that appear under their name whole or not at all: a crash, a kill or a full disk leaves the old file, or none."""

from __future__ import annotations

import os
import platform
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sgdlimits.errors import BadInput

HOST = re.sub(r"\W", "_", platform.node())
"""This machine, in the names of partial files: others may write to the same folder, and their processes are not known here."""


class WriteError(BadInput):
    """A file that could not be written, for want of room or of rights."""


@contextmanager
def whole(path: str | os.PathLike) -> Iterator[Path]:
    """A path beside `path` to write to, which replaces it when the block ends well.

    `BadInput` where there is no room, no right or no folder, and where `path` is anything but a plain file. What killed
    processes have left of earlier writes is removed.
    """
    path = check_plain_file(path)
    clear(path.parent, f".{path.stem}.")
    partial = path.with_name(f".{path.stem}.{os.getpid()}@{HOST}.part{path.suffix}")
    try:
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as reason:
        raise WriteError(
            f"{path} could not be written: {reason.strerror or reason}. Make room or give another path; nothing was changed."
        ) from reason
    finally:
        partial.unlink(missing_ok=True)


def write(path: str | os.PathLike, content: bytes | memoryview) -> Path:
    """Write bytes to a file, whole or not at all, and return the path."""
    with atomic_replacement(path) as partial:
        partial.write_bytes(content)
    return Path(path)


def check_plain_file(path: str | os.PathLike) -> Path:
    """The path, or `BadInput` unless it is a plain file, or nothing in a folder that exists."""
    path = Path(path)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise BadInput(f"the folder {path.parent} does not exist. Make it, or give another path.") from None
        return path
    except (OSError, ValueError) as reason:
        raise BadInput(f"{str(path)!r} is no path of a file: {reason}. Give another path.") from reason
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a link" if stat.S_ISLNK(mode) else "a device"
        raise BadInput(f"{path} is {kind}, which is not replaced. Give the name of a plain file.")
    return path


def clear(folder: str | os.PathLike, head: str = ".") -> None:
    """Remove what processes of this machine that are no more have left of writes, to files whose partial names begin so."""
    ours = re.compile(rf"\..*\.(\d+)@{re.escape(HOST)}\.part(\.\w+)?")
    with os.scandir(os.fspath(folder)) as entries:
        left = [entry for entry in entries if entry.name.startswith(head)]
    for entry in left:
        found = ours.fullmatch(entry.name)
        if found and not _alive(int(found[1])):
            with suppress(OSError):
                os.unlink(entry.path)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True
