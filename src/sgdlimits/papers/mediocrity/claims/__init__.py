"""Claims of Arnaboldi et al., *Escaping mediocrity*, and their computations."""
