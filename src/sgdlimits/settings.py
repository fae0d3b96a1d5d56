"""Settings of the process that make it faster; importing the package does not change them.

The command line, the workers of sweeps and the explorer own their processes and call `setup_process`. A script or a notebook
may call `setup_jax`.
"""

from __future__ import annotations

import atexit
import gc
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from sgdlimits._miscompiled import silence_xla_hints


def setup_jax() -> None:
    """Configure JAX as the command line does: compiled code is kept for later processes, and small calls return sooner.

    Importing the package sets double precision and nothing else. This function, called once before the first computation:

    - stores compiled code of JAX in the user's cache folder (`jax_compilation_cache_dir`, and the two thresholds below which
      JAX stores nothing), unless you have set a folder for JAX or the environment variable SGDLIMITS_CACHE is "off";
    - makes JAX write the entries of that cache atomically: otherwise a process may read an entry that another one has written
      in part (`jax._src.lru_cache.LRUCache.put` is replaced);
    - turns asynchronous dispatch on a CPU off (`jax_cpu_enable_async_dispatch`), unless the environment variable
      JAX_CPU_ENABLE_ASYNC_DISPATCH is set: a call computes in the calling thread, so that small ones do not wait for another;
    - silences all messages of XLA but fatal errors for releases of jaxlib that report hints as errors when they read the cache
      (TF_CPP_MIN_LOG_LEVEL, unless it is set), which has an effect only before JAX is imported.

    >>> import sgdlimits as sl
    >>> sl.setup_jax()
    """
    silence_xla_hints(os.environ)  # before JAX is imported
    import jax

    import sgdlimits._x64  # noqa: F401

    if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
        with suppress(AttributeError):  # a version of JAX without it
            jax.config.update("jax_cpu_enable_async_dispatch", False)
    _enable_compilation_cache()
    _make_cache_writes_atomic()


@lru_cache(maxsize=1)
def setup_process() -> None:
    """Configure a process that runs only this package: JAX as in `setup_jax`, and less garbage collection.

    Modules and traced functions are many objects and hardly any garbage, and need no collection at exit.
    """
    setup_jax()
    gc.set_threshold(100_000, 50, 100)  # Python's own threshold is about a thousand objects
    atexit.register(gc.freeze)


def _enable_compilation_cache() -> None:
    """Let JAX keep compiled code in a cache folder of the package, unless the user has chosen a folder."""
    import jax

    from sgdlimits.kernel.folder import package_cache_folder

    folder = None if getattr(jax.config, "jax_compilation_cache_dir", None) else package_cache_folder()
    if folder is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        # Most functions of a simulation compile in less than a second, JAX's own threshold, and there are many of them.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.02)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@lru_cache(maxsize=1)
def _make_cache_writes_atomic() -> None:
    """Make JAX's cache of compiled code write its entries atomically.

    JAX writes in place, and never repairs a partial entry.
    """
    try:
        from jax._src.lru_cache import LRUCache
    except ImportError:
        return  # another version of JAX
    from sgdlimits.kernel.folder import write_entry

    usual = LRUCache.put  # for caches with a size limit, or in remote storage

    def put(self, key: str, value: bytes) -> None:
        if self.eviction_enabled or not isinstance(self.path, Path):
            return usual(self, key, value)
        return write_entry(self.path / f"{key}-cache", value)

    LRUCache.put = put  # type: ignore[method-assign]
