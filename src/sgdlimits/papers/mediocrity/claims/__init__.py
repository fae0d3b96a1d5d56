"""Claims of Escaping mediocrity."""
