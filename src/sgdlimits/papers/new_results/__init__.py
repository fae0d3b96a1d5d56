"""Results of this package that go beyond the papers."""
