"""Effective dynamics of a loss and a sampler alone: every quantity is a sample average with its standard error."""
