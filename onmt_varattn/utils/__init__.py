"""Files, locks, progress bars and command lines: what has nothing to do with any model."""
