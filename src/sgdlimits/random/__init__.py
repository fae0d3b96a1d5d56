"""Random numbers: one counter-based generator for every level and engine."""

from sgdlimits.random.stream import Purpose, Stream, seed_words

__all__ = ["Purpose", "Stream", "seed_words"]
