"""Latent alignment on OpenNMT-py's parts: decoder, generator, model, loss, training, checkpoints."""
