"""Claims of quadratic networks."""
