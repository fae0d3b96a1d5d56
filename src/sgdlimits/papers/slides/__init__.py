"""Loureiro, *Dimension-free limits of SGD for two-layers neural networks*, slides."""
