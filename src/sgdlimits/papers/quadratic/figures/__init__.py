"""Figures of Escape dynamics and implicit bias."""
