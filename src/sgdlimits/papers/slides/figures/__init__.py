"""Figures of Loureiro's slides, *Dimension-free limits of SGD*."""
