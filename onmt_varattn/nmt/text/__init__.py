"""Text to tokens and back, and vocabularies."""
