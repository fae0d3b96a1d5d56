"""Figures of High-dimensional limit theorems for SGD."""
