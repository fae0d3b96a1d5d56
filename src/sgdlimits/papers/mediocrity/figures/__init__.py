"""Figures of Escaping mediocrity."""
