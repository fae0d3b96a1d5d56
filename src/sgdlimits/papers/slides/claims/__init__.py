"""Claims of Loureiro's slides, *Dimension-free limits of SGD*, and their computations."""
