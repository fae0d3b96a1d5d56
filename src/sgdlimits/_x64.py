"""How JAX is set up, before the first array is made: double precision, calls at once, and a folder for what it compiles.

Overlaps leave a saddle from 1/sqrt(d) by many steps of size 1/d, whose sum single precision would bias at large d. What is
compiled is kept in the user's cache folder, so that the next process starts sooner; the environment variable SGDLIMITS_CACHE
names another folder or turns that off ("off"), and a folder chosen for JAX itself is left alone. Entries of either are written
whole, and again where one cannot be read. Compiled code is run as it is read, so that whoever can write to the folder can run
code as its user: it is used only where it belongs to this user and nobody else can write to it. A processor computes in the
thread that asks: handing a call to another one and waiting for it takes longer than many calls here do. The subpackages that
use JAX import this module first.
"""

import os
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path

import jax

from sgdlimits._miscompiled import turn_off_fusion

HOUR = 3600.0
MOST_BYTES = 2**29
"""The folder's files that were not read for the longest time are removed beyond this size."""


def keep_compiled() -> None:
    """Let JAX keep what it compiles, unless the user has chosen otherwise."""
    asked = os.environ.get("SGDLIMITS_CACHE", "")
    if asked.lower() in ("off", "0", "no", "none") or getattr(jax.config, "jax_compilation_cache_dir", None):
        return
    try:
        folder = Path(asked) if asked else cache_home() / "compiled"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not asked:
            _close(folder)
        if not is_private(folder):
            warnings.warn(
                f"compiled code is not kept in {folder}, where others can write. Run chmod 700 on it once it is empty, "
                "or name another folder in SGDLIMITS_CACHE.",
                stacklevel=2,
            )
            return
        _prune(folder)
    except (OSError, RuntimeError):  # the latter where there is no home
        return  # a home that cannot be written to
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.02)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def cache_home() -> Path:
    """The user's folder of all that the package keeps."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sgdlimits"


def is_private(path: Path) -> bool:
    """Whether a file or folder belongs to this user, and nobody else can write to it."""
    if not hasattr(os, "getuid"):
        return True  # a system with other rights, on which profiles are private
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _close(folder: Path) -> None:
    """Close the package's own folder to others; what it holds goes where they could have written it."""
    if not hasattr(os, "getuid") or folder.stat().st_uid != os.getuid():
        return
    if not is_private(folder):
        for entry in os.scandir(folder):
            if not entry.is_dir(follow_symlinks=False):
                Path(entry.path).unlink(missing_ok=True)
    folder.chmod(0o700)


PART = ".part-"
"""How the names of entries begin that are being written, or were when a process was killed."""


def write_entry(path: Path, content: bytes) -> None:
    """Write a file whole under another name, then rename it: no other process ever reads a part, and an old one is replaced."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=PART)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_whole_entries() -> None:
    """Let JAX write its entries so. It writes them in place, where others read a part, and no second time: a part stays."""
    try:
        from jax._src.lru_cache import LRUCache
    except ImportError:
        return  # another version of JAX
    usual = LRUCache.put

    def put(self, key: str, value: bytes) -> None:
        if self.eviction_enabled or not isinstance(self.path, Path):
            return usual(self, key, value)
        return write_entry(self.path / f"{key}-cache", value)

    LRUCache.put = put  # type: ignore[method-assign]


def _prune(folder: Path) -> None:
    """Remove what is too much, at most once an hour: looking at thousands of entries takes longer than reading a few."""
    stamp = folder / ".pruned"
    if stamp.exists() and time.time() - stamp.stat().st_mtime < HOUR:
        return
    stamp.touch()
    for part in folder.glob(f"{PART}*"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > HOUR:
                part.unlink()
    files = sorted(
        ((entry.stat(), entry.path) for entry in os.scandir(folder) if not entry.name.startswith(".")),
        key=lambda file: -file[0].st_atime,
    )
    total = 0
    for status, path in files:
        total += status.st_size
        if total > MOST_BYTES:
            Path(path).unlink(missing_ok=True)


jax.config.update("jax_enable_x64", True)
turn_off_fusion()
if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
    with suppress(AttributeError):  # a version of JAX without it
        jax.config.update("jax_cpu_enable_async_dispatch", False)
keep_compiled()
write_whole_entries()
