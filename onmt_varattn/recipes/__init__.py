"""The recipes of onmt_reproduce, and the results of the paper (paper.yaml)."""
