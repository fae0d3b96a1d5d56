"""sgdlimits: define a learning problem once, and study its one-pass SGD at every level of description.

The levels are SGD on the weights, the exact Markov chain of their overlaps, its SDE and ODE, and the mean-field limit.
Names are loaded when they are first used (the list is in `__init__.pyi`), so that importing the package is quick.
"""

import gc
from contextlib import contextmanager

import lazy_loader

from sgdlimits.renamed import names_of as _names_of

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _import_public_name(name: str):
    """Return the public object called `name` of the package, importing its module on first use."""
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    with _garbage_collection_disabled():
        return _load(name)


@contextmanager
def _garbage_collection_disabled():
    """Disable garbage collection in a `with` block around imports, which makes them about a sixth faster."""
    searches = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searches:
            gc.enable()


__getattr__ = _names_of(__name__, _import_public_name)
