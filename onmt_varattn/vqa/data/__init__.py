"""Questions, answers and batches."""
