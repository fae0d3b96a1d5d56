"""What this package adds to the papers."""
