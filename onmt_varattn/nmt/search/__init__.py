"""Beam search, translation and its scores."""
