"""Commands that evaluate and show trained models."""
