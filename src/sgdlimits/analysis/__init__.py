"""Analysis of trajectories, flows and landscapes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["conserved", "landscape", "plot"])
