"""Translation models: building, checkpoints, the decoder as OpenNMT-py calls it."""
