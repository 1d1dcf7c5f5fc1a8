"""Looking at what a model does: attention as text and as pictures."""
