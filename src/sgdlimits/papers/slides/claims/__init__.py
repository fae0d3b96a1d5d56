"""Claims of the slides on dimension-free limits."""
