"""The translation model with latent alignments: building, checking and loading it."""

import warnings
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from typing import Any

import onmt.model_builder as builder
import torch
from onmt.models import NMTModel
from onmt.utils.logging import logger
from onmt.utils.misc import use_gpu
from onmt.utils.parse import ArgumentParser
from torch import Tensor, nn

from onmt_varattn.errors import UserError
from onmt_varattn.latent.distributions import flat_posterior
from onmt_varattn.modules import Posterior, Trace
from onmt_varattn.nmt.model import checkpoint as checkpoints
from onmt_varattn.nmt.model import stock
from onmt_varattn.nmt.model.decoder import AttentionDecoder
from onmt_varattn.nmt.model.generator import MixtureGenerator
from onmt_varattn.training.attention import mixture_of
from onmt_varattn.training.checkpoints.fitting import check_finite, check_fit, taken_from
from onmt_varattn.training.settings import MixtureSettings, check_mixture
from onmt_varattn.utils.settings import from_options

_NULL = "decoder.attention.null"


class AlignmentModel(NMTModel):
    """Encoder, attention decoder and, for some objectives, an inference network.

    Args:
        encoder: OpenNMT-py's encoder.
        decoder: decoder with latent attention.
        posterior: inference network, used in training only; default: none.
        has_flat_posterior: use a uniform posterior instead, which the loss refines (-posterior svi).
        attention: name of the training objective, default: "soft".
    """

    decoder: AttentionDecoder

    def __init__(
        self,
        encoder: nn.Module,
        decoder: AttentionDecoder,
        posterior: Posterior | None = None,
        has_flat_posterior: bool = False,
        attention: str = "soft",
    ) -> None:
        super().__init__(encoder, decoder)
        self.posterior, self.has_flat_posterior, self.attention = posterior, has_flat_posterior, attention

    def forward(
        self, src: Tensor, tgt: Tensor, lengths: Tensor, bptt: bool = False, with_align: bool = False
    ) -> tuple[Trace, dict[str, Tensor]]:
        """Encode the source and run the decoder over the gold target.

        Args:
            src: source, S x N x features.
            tgt: target with begin and end of sentence, (T + 1) x N x features.
            lengths: source lengths, N.
            bptt: unused (truncated backpropagation is refused).
            with_align: unused (transformers only).

        Returns:
            Queries, prior and posterior scores of all target positions, and no attention.
        """
        final, memory_bank, lengths = self.encoder(src, lengths)
        self.decoder.init_state(src, memory_bank, final)
        trace = self.decoder.trace(tgt[:-1], lengths)
        if self.posterior is not None:
            words = tgt[1:]
            padding = self.decoder.embeddings.word_padding_idx
            trace.posterior = self.posterior(
                self.encoder.embeddings(src[: len(memory_bank)]).transpose(0, 1),  # without extra padding
                lengths,
                self.decoder.embed(words),
                words[:, :, 0].ne(padding).sum(0),
            )
        elif self.has_flat_posterior:
            trace.posterior = flat_posterior(trace.prior)
        return trace, {}

    def count_parameters(self, log: Callable[[str], None] | None = print) -> dict[str, int]:
        """Number of parameters per part: encoder, decoder, posterior and output layer.

        A parameter shared by several parts is counted once, in the first of them.

        Args:
            log: function that prints one line per part and their sum, default: print.
        """
        counts: Counter[str] = Counter()
        for name, parameter in self.named_parameters():
            part = name.split(".")[0]
            counts["output layer" if part == "generator" else part] += parameter.numel()
        if log is not None:
            for part, count in counts.items():
                log(f"{part}: {count}")
            log(f"* number of parameters: {counts.total()}")
        return dict(counts)


def _drop(embeddings: Any, rate: float) -> None:
    """Add dropout to OpenNMT-py's embeddings, unless position encoding already applies -dropout."""
    if rate and not embeddings.position_encoding:
        embeddings.make_embedding.add_module("dropout", nn.Dropout(rate))


def build_alignment_model(opt: Namespace, fields: dict[str, Any]) -> AlignmentModel:
    """Build the model from options; OpenNMT-py adds the generator."""
    if opt.share_embeddings and fields["src"].base_field.vocab != fields["tgt"].base_field.vocab:
        raise UserError("-share_embeddings needs one vocabulary for both sides: use -share_vocab")
    with warnings.catch_warnings():  # dropout with a single layer is not a mistake
        warnings.filterwarnings("ignore", "dropout option adds dropout after all but last")
        encoder, source_embeddings = builder.build_encoder_with_embeddings(opt, fields)
    target_embeddings = builder.build_embeddings(opt, fields["tgt"], for_encoder=False)
    for embeddings in (source_embeddings, target_embeddings):
        _drop(embeddings, getattr(opt, "embedding_dropout", 0.0))
    if opt.share_embeddings:
        target_embeddings.word_lut.weight = source_embeddings.word_lut.weight
    posterior = None
    if opt.posterior in ("amortized", "savi"):
        posterior = Posterior(
            source_embeddings.embedding_size,
            target_embeddings.embedding_size,
            kind=opt.posterior_rnn,
            rnn_type=opt.rnn_type,
            size=opt.posterior_rnn_size,
            layers=opt.posterior_layers,
            dropout=opt.posterior_dropout,
            null=getattr(opt, "null_alignment", False),
        )
    decoder = AttentionDecoder.from_opt(opt, target_embeddings)
    return AlignmentModel(encoder, decoder, posterior, opt.posterior == "svi", opt.attention)


def check_parameters(model_opt: Namespace, fields: dict[str, Any], checkpoint: dict[str, Any]) -> None:
    """Refuse a checkpoint whose parameters do not match the model that its options describe.

    OpenNMT-py loads with `strict=False`: missing parameters would silently keep their random initialisation.
    The model is first built on the meta device, so that a file cannot request more memory than its own size.

    Raises:
        UserError: names a parameter.
    """
    with torch.device("meta"):
        model = builder.build_task_specific_model(model_opt, fields)
    needed = {name: value for name, value in model.state_dict().items() if not name.startswith("generator.")}
    found = checkpoint["model"]
    if model_opt.attention and stock.is_stock(checkpoint):
        found = stock.translate(found)
        needed = {name: value for name, value in needed.items() if name in found}
    words = len(fields["tgt"].base_field.vocab)
    weight = "linear.weight" if model_opt.copy_attn else "0.weight"
    generator = {weight: torch.empty(words, model_opt.dec_rnn_size, device="meta")}
    if model_opt.update_vocab:  # rows of known words are copied, others are new
        needed = {name: value for name, value in needed.items() if ".embeddings." not in name}
        generator = {}
    optional = ["posterior.", "decoder.attention.objective."]
    if not getattr(checkpoint["opt"], "null_alignment", False):  # then training may add NULL
        optional.append(_NULL)
    check_fit(needed, found, tuple(optional))
    check_fit(generator, checkpoint["generator"])


def finish_alignment_model(model: AlignmentModel, checkpoint: dict[str, Any] | None) -> AlignmentModel:
    """Replace OpenNMT-py's generator, and log which parts a checkpoint does not contain."""
    if not isinstance(model.generator, MixtureGenerator):
        model.generator = MixtureGenerator(model.generator[0])
        model.decoder.attention.use_output_layer(model.generator.output_layer)
    if checkpoint is not None and stock.is_stock(checkpoint):
        stock.take_over(model, checkpoint)
    elif checkpoint is not None:
        found = any(name.startswith("posterior.") for name in checkpoint["model"])
        if model.posterior is not None and not found:
            logger.info("The checkpoint has no inference network: its parameters are initialised at random.")
        if model.decoder.attention.null is not None and _NULL not in checkpoint["model"]:
            logger.info("The checkpoint has no NULL position: its parameters are initialised at random.")
    return model


def load_test_model(opt: Namespace, model_path: str | None = None) -> tuple[dict[str, Any], nn.Module, Any]:
    """Load a model for translation, with or without -attention.

    Replaces OpenNMT-py's function of this name; reads checkpoints safely and checks their parameters.

    Args:
        opt: options of onmt_translate.
        model_path: path of the checkpoint, default: the first of `opt.models`.

    Returns:
        Fields, the model in evaluation mode, and the options that it was built with.
    """
    path = model_path or opt.models[0]
    checkpoint = checkpoints.load(path)
    if not opt.allow_nonfinite:
        check_finite(path, [value for part in ("model", "generator") for value in checkpoint[part].values()])
    checkpoints.forget_unknown_words(checkpoint["vocab"])
    with taken_from(path, "a model"):
        model_opt = ArgumentParser.ckpt_model_opts(checkpoint["opt"])
        ArgumentParser.update_model_opts(model_opt)
        ArgumentParser.validate_model_opts(model_opt)
        model_opt.update_vocab = False
        model = builder.build_base_model(model_opt, checkpoint["vocab"], use_gpu(opt), checkpoint, opt.gpu)
        check_fit(
            {name: value for name, value in model.state_dict().items() if name.startswith("posterior.")},
            checkpoint["model"],
        )
    if opt.fp32:
        model.float()
    elif opt.int8:
        if opt.gpu >= 0:
            raise UserError("-int8 runs on the CPU only; leave out -gpu")
        layers = (
            {nn.Linear} if isinstance(model, AlignmentModel) else None
        )  # the RNN decoder accesses its weights
        torch.ao.quantization.quantize_dynamic(model, layers, inplace=True)
    choose_mixture(model, opt)
    return checkpoint["vocab"], model.eval(), model_opt


def choose_mixture(model: nn.Module, opt: Namespace) -> None:
    """Set the mixture over alignments that a model, or every model of an ensemble, decodes with."""
    models = list(getattr(model, "models", [model]))
    settings = from_options(MixtureSettings, opt)
    for one in models:
        if not isinstance(one, AlignmentModel):
            check_mixture(settings, None)
            continue
        samples = opt.attention_samples
        if samples is not None and one.attention != "relaxed":
            raise UserError(
                f"-attention_samples {samples} is for models trained with -attention relaxed; leave it out"
            )
        one.decoder.mixture = mixture_of(settings, one.decoder.attention.objective, samples)
