"""Effective dynamics estimated from a user's loss and sampler, as sample averages with standard errors."""
