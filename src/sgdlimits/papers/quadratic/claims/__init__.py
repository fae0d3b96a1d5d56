"""Claims of Escape dynamics and implicit bias."""
