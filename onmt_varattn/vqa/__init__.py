"""Visual question answering: the same latent alignment, over the regions of an image."""
