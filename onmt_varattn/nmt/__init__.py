"""Latent alignment on OpenNMT-py's parts: decoder, generator, model, loss, training, checkpoints."""

import warnings

# OpenNMT-py 2.3.0 uses names of torch.cuda.amp that torch has since renamed.
warnings.filterwarnings("ignore", message=r"`torch\.cuda\.amp\.", category=FutureWarning, module=r"onmt\.")
# A one-layer RNN has no dropout between layers, and OpenNMT-py passes the rate all the same.
warnings.filterwarnings("ignore", message="dropout option adds dropout after all but last")
