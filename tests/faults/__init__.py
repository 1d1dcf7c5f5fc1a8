"""Faults put in on purpose, and load; run by hand, not by pytest."""
