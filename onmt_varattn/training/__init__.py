"""The training engine of all tasks: loop, optimiser, checkpoints, resume, reports, processes."""
