"""Figures of Bocchi et al., *Escape dynamics and implicit bias of one-pass SGD*."""
