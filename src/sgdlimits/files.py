"""Atomic writes of files: after a crash or on a full disk, the old file is left or none, never a part of the new one."""

from __future__ import annotations

import os
import platform
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sgdlimits.errors import BadInput

HOST_NAME = re.sub(r"\W", "_", platform.node())
"""Name of this machine, which is part of the names of partial files.

In a shared folder it tells this machine's process numbers from those of other machines.
"""


class WriteError(BadInput):
    """Error for a file that could not be written, for example on a full disk or without permission."""


@contextmanager
def atomic_replacement(path: str | os.PathLike) -> Iterator[Path]:
    """Provide a temporary path to write to, which replaces `path` if the block ends without an error.

    Raise `BadInput` if the file cannot be written, and if `path` is anything but a regular file. Partial files that
    killed processes have left are removed.
    """
    path = check_plain_file(path)
    remove_partial_files(path.parent, f".{path.stem}.")
    partial = path.with_name(f".{path.stem}.{os.getpid()}@{HOST_NAME}.part{path.suffix}")
    try:
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())  # otherwise a power failure could leave a renamed file without its content
        os.replace(partial, path)
    except OSError as reason:
        raise WriteError(
            f"{path} could not be written: {reason.strerror or reason}. Free disk space or give another path; no "
            f"file was changed."
        ) from reason
    finally:
        partial.unlink(missing_ok=True)


def write(path: str | os.PathLike, content: bytes | memoryview) -> Path:
    """Write bytes to a file atomically (complete or not at all), and return the path."""
    with atomic_replacement(path) as partial:
        partial.write_bytes(content)
    return Path(path)


def check_plain_file(path: str | os.PathLike) -> Path:
    """Return the path; raise `BadInput` unless it is a regular file, or a new name in an existing folder."""
    path = Path(path)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise BadInput(f"the folder {path.parent} does not exist. Create it, or give another path.") from None
        return path
    except (OSError, ValueError) as reason:
        raise BadInput(f"{str(path)!r} is not a valid file path: {reason}. Give another path.") from reason
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a link" if stat.S_ISLNK(mode) else "a device"
        raise BadInput(f"{path} is {kind}, which is not replaced. Give the path of a regular file.")
    return path


def remove_partial_files(folder: str | os.PathLike, head: str = ".") -> None:
    """Remove the partial files left in a folder by processes of this machine that no longer run.

    Only files whose names begin with `head` are removed.
    """
    ours = re.compile(rf"\..*\.(\d+)@{re.escape(HOST_NAME)}\.part(\.\w+)?")
    with os.scandir(os.fspath(folder)) as entries:
        left = [entry for entry in entries if entry.name.startswith(head)]
    for entry in left:
        found = ours.fullmatch(entry.name)
        if found and not _is_running(int(found[1])):
            with suppress(OSError):
                os.unlink(entry.path)


def _is_running(process: int) -> bool:
    """Return whether a process with the given process number is running on this machine."""
    try:
        os.kill(process, 0)  # sends no signal, but fails without a process
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # the process belongs to another user
        pass
    return True
