"""Training of translation models."""
