"""Settings of translation, and the checks of OpenNMT-py's options that go with them.

Fields without help are options of OpenNMT-py's own parser: only their values are checked here. OpenNMT-py
works with an `argparse.Namespace`, so that the functions at the seam take one and read settings from it.
"""

import argparse
from dataclasses import dataclass

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.presets import PRESETS
from onmt_varattn.training.settings import (
    AttentionSettings,
    CheckpointSettings,
    MixtureSettings,
    ModelAttention,
    RunSettings,
    check_attention,
    check_mixture,
    conditional,
    fill_attention,
    registered,
)
from onmt_varattn.training.settings import saved_choices as latent_choices
from onmt_varattn.utils.settings import Settings, check_range, from_options, options, setting, to_options


def _never(it: Settings) -> bool:
    return False


@dataclass(kw_only=True)
class OpenNMTModel(Settings):
    """OpenNMT-py's options of a model, and the values that the attention decoder supports."""

    model_task: str = setting("seq2seq", choices=["seq2seq"])
    encoder_type: str = setting("rnn", choices=["rnn", "brnn"])
    decoder_type: str = setting("rnn", choices=["rnn"])
    rnn_type: str = setting("LSTM", choices=["LSTM", "GRU"])
    enc_rnn_size: int = setting(500, at_least=1)
    dec_rnn_size: int = setting(500, at_least=1)
    rnn_size: int = -1
    enc_layers: int = setting(2, at_least=1)
    dec_layers: int = setting(2, at_least=1)
    layers: int = -1
    src_word_vec_size: int = 500
    tgt_word_vec_size: int = 500
    share_embeddings: bool = False
    share_decoder_embeddings: bool = False
    input_feed: int = 1
    dropout: list[float] = setting([0.3], at_least=0, below=1)
    copy_attn: bool = setting(False, applies=_never)
    coverage_attn: bool = setting(False, applies=_never)
    context_gate: str | None = setting(None, applies=_never)
    generator_function: str = setting("softmax", applies=_never)
    global_attention_function: str = setting("softmax", applies=_never)
    bridge: bool = setting(False, applies=_never)


@dataclass(kw_only=True)
class ModelSettings(ModelAttention, OpenNMTModel):
    """A translation model with latent attention: kept in its checkpoint."""

    title = "Latent attention"

    decoder_init: str = setting(
        "zero",
        choices=["zero", "encoder"],
        help="Initial state of the decoder: zero, as in the paper, or the encoder's last state "
        "(projected where sizes differ).",
    )
    null_alignment: bool = setting(
        False,
        help="Add a NULL source position with a learned vector, to which target words without a source word "
        "align. It is left out of alignment links.",
    )
    relaxed_distribution: str | None = setting(
        None,
        choices=registered("distributions", "RELAXED"),
        help="Distribution over mixtures of positions, for prior and posterior of -attention relaxed. "
        "Default: dirichlet.",
        applies=lambda it: "relaxed" in it.estimator.uses,
        usual="dirichlet",
    )
    embedding_dropout: float = setting(
        0.0,
        help="Dropout on the word embeddings of both sides. OpenNMT-py's RNNs have none.",
        at_least=0,
        below=1,
    )

    @property
    def has_temperature(self) -> bool:
        """Whether draws have a temperature; of the relaxed distributions the concrete one has."""
        relaxed = "relaxed" in self.estimator.uses
        return super().has_temperature and (not relaxed or self.relaxed_distribution == "concrete")


@dataclass(kw_only=True)
class PosteriorSettings(ModelSettings):
    """The inference network."""

    title = "Posterior"

    posterior_rnn: str | None = setting(
        None,
        choices=["brnn", "rnn", "mean"],
        help="Encoder of source and target in the inference network; mean: embeddings alone. Default: brnn.",
        applies=lambda it: it.has_network,
        usual="brnn",
    )
    posterior_rnn_size: int | None = setting(
        None,
        help="Hidden size of the inference network. Default: -enc_rnn_size.",
        at_least=1,
        applies=lambda it: it.has_network,
        usual=lambda it: it.enc_rnn_size if it.rnn_size < 0 else it.rnn_size,
    )
    posterior_layers: int | None = setting(
        None,
        help="Layers of the inference network. Default: -enc_layers.",
        at_least=1,
        applies=lambda it: it.has_network,
        usual=lambda it: it.enc_layers if it.layers < 0 else it.layers,
    )
    posterior_dropout: float | None = setting(
        None,
        help="Dropout of the inference network. Default: -dropout.",
        at_least=0,
        below=1,
        applies=lambda it: it.has_network,
        usual=lambda it: it.dropout[0] if isinstance(it.dropout, list) else it.dropout,
    )


NETWORK = ("posterior_rnn", "posterior_rnn_size", "posterior_layers", "posterior_dropout")


@dataclass(kw_only=True)
class LatentSettings(AttentionSettings, PosteriorSettings):
    """A translation model with latent attention, and its training."""

    title = "Training latent attention"

    posterior_smoothing: float | None = setting(
        None,
        help="Share of an external posterior that is spread over all source words. Default: 0.1.",
        above=0,
        at_most=1,
        applies=lambda it: it.posterior == "external",
        usual=0.1,
    )
    lambda_align: float = setting(0.0, applies=lambda it: it.posterior == "external")
    lambda_coverage: float = setting(0.0, applies=_never)
    label_smoothing: float = setting(0.0, at_least=0, below=1)


CONDITIONAL = conditional(LatentSettings)
OF_OBJECTIVE = (
    "attention",
    "attention_estimator",
    "gumbel_hard",
    "lambda_align",
    "null_alignment",
    *CONDITIONAL,
)
"""The settings of an objective, which a run sets for any model that it starts from."""


def saved_choices() -> dict[str, list[str]]:
    """Words that a checkpoint may contain where the command line takes other words, or any text."""
    return {
        **latent_choices(),
        # OpenNMT-py sets it to -global_attention
        "copy_attn_type": ["none", *registered("scores", "SCORES")],
        "self_attn_type": ["scaled-dot", "average"],
        "early_stopping_criteria": ["ppl", "accuracy"],
        "data_type": ["text"],
    }


@dataclass(kw_only=True)
class TrainSettings(RunSettings, MixtureSettings, LatentSettings):
    """All settings of onmt_train that are checked."""

    title = "Training"

    text_processing: str | None = setting(
        None,
        help="Tokenisation and subword models, as written by onmt_preprocess, to keep in the checkpoint, so "
        "that it translates raw text.",
    )
    preset: str | None = setting(
        None,
        choices=list(PRESETS),
        help="Sizes and schedule in one word: small (for a CPU, or a small corpus), paper (Deng et al.'s for "
        "IWSLT14), transformer (OpenNMT-py's own model, without -attention). Options that are given win.",
    )
    dist_timeout: float = setting(
        600.0, help="Seconds that a process waits for the others of a distributed run.", above=0
    )
    train_steps: int = setting(100000)
    single_pass: bool = False
    accum_count: list[int] = setting([1], at_least=1)
    adam_beta1: float = setting(0.9, at_least=0, below=1)
    adam_beta2: float = setting(0.999, at_least=0, below=1)
    bucket_size: int = setting(2048, at_least=1)
    src_vocab_size: int = setting(50000, at_least=1)
    tgt_vocab_size: int = setting(50000, at_least=1)
    world_size: int = setting(1, at_least=1)
    gpu_backend: str = "nccl"
    optim: str = "sgd"
    model_dtype: str = "fp32"
    truncated_decoder: int = 0
    n_sample: int = 0
    dump_fields: bool = False
    dump_transforms: bool = False


@dataclass(kw_only=True)
class TranslateSettings(CheckpointSettings, MixtureSettings):
    """All settings of onmt_translate that are checked."""

    title = "Translation (onmt_varattn)"

    beam_size: int = setting(5, option="beam", help="Same as -beam_size.", at_least=1)
    attention_samples: int | None = setting(None, help="Samples per word for relaxed models. Default: 10.")
    eos_norm: float = setting(
        0.0,
        help="In beam search, subtract this times source length / (length so far + 1) from the score of "
        "ending a translation. The paper uses 3. 0: off.",
        at_least=0,
    )
    pretokenized: bool = setting(
        False,
        help="The source (and -tgt) is already tokenised and split into subwords, and so is the output. Only "
        "for models that carry their text processing.",
    )
    dump_attention: str | None = setting(
        None,
        help="File to which the attention of each sentence, between tokens, is written as a line of JSON: "
        "the prior of the best translation, and with -tgt prior, posterior and exact posterior of the "
        "reference. For a single model trained with -attention.",
    )
    report_align: bool = setting(
        False,
        help="Write the most probable source word of each word of a translation after it, counted from 0: "
        "'a translation ||| 0-0 1-1'. Words that align to NULL (-null_alignment) have none. With -with_score "
        "the score comes last, after a tab. Words are tokens with -pretokenized, or if the model does not "
        "carry its text processing.",
        replaces=True,
    )
    n_best: int = setting(1, at_least=1)
    batch_size: int = setting(30, at_least=1)
    max_length: int = setting(100, at_least=1)
    min_length: int = setting(0, at_least=0)
    shard_size: int = setting(10000, at_least=0)
    random_sampling_temp: float = setting(1.0, at_least=0)
    random_sampling_topk: int = 0
    random_sampling_topp: float = setting(0.0, at_least=0, at_most=1)
    dump_beam: str = ""
    gpu: int = -1
    src: str | None = None
    tgt: str | None = None
    tgt_prefix: bool = False
    transforms: list[str] | None = None


def resolve_defaults(opt: argparse.Namespace) -> None:
    """Fill in defaults that depend on other options."""
    it = from_options(LatentSettings, opt)
    fill_attention(it)
    if it.attention and it.posterior == "external":
        it.lambda_align = 1.0  # makes OpenNMT read alignments; its loss is not used
    to_options(it, opt)


def check_model(opt: argparse.Namespace) -> None:
    """Check that a model with `-attention` can be built.

    Raises:
        UserError: names the option and the remedy.
    """
    it = from_options(LatentSettings, opt)
    check_attention(it, it.label_smoothing)
    if it.posterior == "external" and it.attention == "relaxed":
        raise UserError("-posterior external does not go with -attention relaxed; use variational")
    if it.posterior_rnn == "brnn" and (it.posterior_rnn_size or 0) % 2:
        raise UserError(f"-posterior_rnn_size {it.posterior_rnn_size} must be even, for two directions")
    check_mixture(from_options(MixtureSettings, opt), it.attention)
    scores = registered("scores", "SCORES")
    if it.global_attention not in scores:
        raise UserError(
            f"-global_attention {it.global_attention} does not go with -attention; use {' or '.join(scores)}"
        )
    if it.encoder_type == "brnn" and it.enc_rnn_size % 2:
        raise UserError(
            f"-enc_rnn_size {it.enc_rnn_size} must be even, for two directions (-encoder_type brnn)"
        )
    if it.global_attention == "dot":
        _check_equal(
            it, "global_attention dot", "enc_rnn_size", "dec_rnn_size", "; use mlp, general or scaled_dot"
        )
    if it.decoder_init == "encoder":
        _check_equal(it, "decoder_init encoder", "enc_layers", "dec_layers")
    if it.share_decoder_embeddings:
        _check_equal(it, "share_decoder_embeddings", "tgt_word_vec_size", "dec_rnn_size")
    if it.share_embeddings:
        _check_equal(it, "share_embeddings", "src_word_vec_size", "tgt_word_vec_size")


def _check_equal(it: Settings, needed_by: str, one: str, other: str, remedy: str = "") -> None:
    """Check that two sizes are equal, for an option that needs them to be."""
    first, second = getattr(it, one), getattr(it, other)
    if first != second:
        raise UserError(f"-{needed_by} needs equal -{one} ({first}) and -{other} ({second}){remedy}")


def check_train(opt: argparse.Namespace) -> None:
    """Check a training run before long work starts.

    Raises:
        UserError: names the option and the remedy.
    """
    import torch

    check_processes(opt)
    check_ranges(opt)
    it = from_options(TrainSettings, opt)
    if it.model_dtype == "fp16" and not torch.cuda.is_available():
        raise UserError("-model_dtype fp16 needs a CUDA device; leave it out for the CPU")
    if not it.attention:
        check_mixture(from_options(MixtureSettings, opt), None)
        for name in ("embedding_dropout", "null_alignment"):
            if getattr(it, name):
                raise UserError(f"-{name} is for models with -attention; give both, or leave it out")
    if it.attention and it.truncated_decoder:
        raise UserError("-truncated_decoder does not go with -attention; leave it out")


def check_ranges(opt: argparse.Namespace) -> None:
    """Check the ranges of all numbers, from the command line or from a checkpoint.

    Raises:
        UserError: names the option and its range.
    """
    it = from_options(TrainSettings, opt)
    if it.train_steps < 1 and not it.single_pass:
        raise UserError(f"-train_steps {it.train_steps} must be at least 1")
    if not it.accum_count:
        raise UserError("-accum_count must be at least 1")
    for one in options(TrainSettings):
        if one.field not in FREE:
            check_range(one, getattr(it, one.field))


# Options for which OpenNMT-py takes any number, the negative ones as "off"; `check_model` checks sizes.
FREE = frozenset(
    (  # noqa: SIM905
        "max_grad_norm early_stopping start_decay_steps save_checkpoint_steps learning_rate_decay "
        "keep_checkpoint enc_layers dec_layers enc_rnn_size dec_rnn_size"
    ).split()
)


def check_processes(opt: argparse.Namespace) -> None:
    """Check that a distributed run can start.

    Raises:
        UserError: names the option and the remedy.
    """
    import torch

    it = from_options(TrainSettings, opt)
    if it.world_size < 1:
        raise UserError(f"-world_size {it.world_size} must be at least 1")
    if it.gpu_ranks and not torch.cuda.is_available() and (it.world_size == 1 or it.gpu_backend != "gloo"):
        raise UserError(
            f"-gpu_ranks {it.gpu_ranks[0]}: torch finds no CUDA device; leave it out for the CPU "
            "(several processes: -gpu_backend gloo)"
        )
    if it.world_size == 1:
        return
    if not it.gpu_ranks and it.gpu_backend != "gloo":
        raise UserError(
            f"-world_size {it.world_size} needs -gpu_ranks; on the CPU use -gpu_backend gloo instead"
        )
    if len(set(it.gpu_ranks)) < len(it.gpu_ranks) or not set(it.gpu_ranks) <= set(range(it.world_size)):
        raise UserError(
            f"-gpu_ranks {' '.join(map(str, it.gpu_ranks))} must be different numbers "
            f"from 0 to {it.world_size - 1} (-world_size {it.world_size})"
        )
    for name in ("truncated_decoder", "n_sample", "dump_fields", "dump_transforms"):
        if getattr(it, name):
            raise UserError(f"-{name} does not go with several processes; leave one of them out")
    if it.optim == "sparseadam":
        raise UserError("-optim sparseadam does not go with several processes; use adam")


def check_translate(opt: argparse.Namespace) -> None:
    """Check a translation run.

    Raises:
        UserError: names the option and the remedy.
    """
    it = from_options(TranslateSettings, opt)
    for one in options(TranslateSettings):
        if one.field == "n_best" and not 1 <= it.n_best <= it.beam_size:
            raise UserError(f"-n_best {it.n_best} must be between 1 and -beam ({it.beam_size})")
        check_range(one, getattr(it, one.field))
    if it.min_length > it.max_length:
        raise UserError(f"-min_length {it.min_length} is above -max_length {it.max_length}")
    if it.random_sampling_topk < -1:
        raise UserError(f"-random_sampling_topk {it.random_sampling_topk} must be -1 (all words) or above")
    if it.dump_beam:
        raise UserError("-dump_beam does not work in OpenNMT-py 2.3.0; leave it out")
    if it.gpu >= 0:
        import torch

        if not torch.cuda.is_available():
            raise UserError(f"-gpu {it.gpu}: torch finds no CUDA device; leave it out for the CPU")
    if it.tgt_prefix and not it.tgt:
        raise UserError("-tgt_prefix needs the prefixes: give them with -tgt")
    if it.dump_attention and it.src == "-":
        raise UserError("-dump_attention does not go with -src - (standard input); use a file")
    if it.dump_attention and it.transforms:
        raise UserError("-dump_attention does not go with -transforms; leave one of them out")
    if it.eos_norm and (it.random_sampling_topk or it.random_sampling_topp):
        raise UserError("-eos_norm is for beam search; it does not go with random sampling")
