"""Arnaboldi et al., *Escaping mediocrity: how two-layer networks learn hard generalized linear models*."""
