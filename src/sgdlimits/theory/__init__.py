"""Closed results, one folder or file a paper. They use the package's convention: times are in samples per dimension."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
