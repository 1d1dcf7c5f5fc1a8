"""Commands for translation."""
