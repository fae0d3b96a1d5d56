"""Claims of this package's own results, and their computations."""
