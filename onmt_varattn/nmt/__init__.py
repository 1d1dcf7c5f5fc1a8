"""Latent alignment on OpenNMT-py's parts: decoder, generator, model, loss, training, checkpoints."""

import warnings

# OpenNMT-py 2.3.0 decorates six functions with names that torch has since renamed.
warnings.filterwarnings(
    "ignore", message=r"`torch\.cuda\.amp\.custom_", category=FutureWarning, module=r"onmt\."
)
# A one-layer RNN has no dropout between layers, and OpenNMT-py passes the rate all the same.
warnings.filterwarnings("ignore", message="dropout option adds dropout after all but last")
