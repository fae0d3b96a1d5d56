"""Figures of Arnaboldi et al., *Escaping mediocrity*."""
