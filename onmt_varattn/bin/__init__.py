"""One module per command; each has a `main` that calls `utils.cli.run`."""
