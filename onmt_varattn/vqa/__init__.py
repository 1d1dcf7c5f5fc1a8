"""Visual question answering with a latent alignment over the regions of an image."""
