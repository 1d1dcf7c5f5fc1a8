"""Training data of translation models: files, fields, batches."""
