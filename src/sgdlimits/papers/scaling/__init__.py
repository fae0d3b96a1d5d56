"""Scaling laws of least squares: Paquette et al. 2024, Ferbach et al. 2025, Li et al. 2026, Bordelon and Mori 2026."""
