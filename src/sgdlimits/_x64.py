"""How JAX is set up, before the first array is made: double precision, and a folder for what it compiles.

Overlaps leave a saddle from 1/sqrt(d) by many steps of size 1/d, whose sum single precision would bias at large d. What is
compiled is kept in the user's cache folder, so that the next process starts sooner; the environment variable SGDLIMITS_CACHE
names another folder or turns that off ("off"), and a folder chosen for JAX itself is left alone. The subpackages that use JAX
import this module first.
"""

import os
from pathlib import Path

import jax

MOST_BYTES = 2**29
"""The folder's files that were not read for the longest time are removed beyond this size."""


def keep_compiled() -> None:
    """Let JAX keep what it compiles, unless the user has chosen otherwise."""
    asked = os.environ.get("SGDLIMITS_CACHE", "")
    if asked.lower() in ("off", "0", "no", "none") or getattr(jax.config, "jax_compilation_cache_dir", None):
        return
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(asked) if asked else Path(home) / "sgdlimits" / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _prune(folder)
    except OSError:
        return  # a home that cannot be written to
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.02)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _prune(folder: Path) -> None:
    files = sorted(((entry.stat(), entry.path) for entry in os.scandir(folder)), key=lambda file: -file[0].st_atime)
    total = 0
    for status, path in files:
        total += status.st_size
        if total > MOST_BYTES:
            Path(path).unlink(missing_ok=True)


jax.config.update("jax_enable_x64", True)
keep_compiled()
