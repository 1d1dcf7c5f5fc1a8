"""Commands for visual question answering."""
