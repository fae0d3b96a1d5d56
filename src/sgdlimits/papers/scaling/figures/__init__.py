"""Figures of scaling laws."""
