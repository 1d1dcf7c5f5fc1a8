"""One module a command; `run` is what they share."""
