"""Networks for latent attention, batch first: decoders and inference networks. They need only torch."""

from onmt_varattn.modules.decoder import RNNDecoder, State, Trace
from onmt_varattn.modules.posterior import GatedPosterior, Posterior, SentenceEncoder
from onmt_varattn.modules.recurrence import Recurrence, StackedCells

__all__ = [
    "GatedPosterior",
    "Posterior",
    "RNNDecoder",
    "Recurrence",
    "SentenceEncoder",
    "StackedCells",
    "State",
    "Trace",
]
