"""Every option of ours: its meaning, its default, and the checks on it.

Options come in three parts, as OpenNMT's do: `model` options are kept in the checkpoint and
build the same model again, `train` and `translate` options matter for one run.
"""

from collections.abc import Callable
from typing import Any

import torch

from onmt_varattn.errors import UserError
from onmt_varattn.latent import BASELINES, ESTIMATORS, OBJECTIVES, RELAXED, SCORES, Estimator, Objective
from onmt_varattn.latent.estimators import SPARSE
from onmt_varattn.latent.objectives import WARM_UPS
from onmt_varattn.training.checkpoints.options import CountOr


def model_opts(parser: Any) -> None:
    """Options that define a model."""
    _extend_global_attention(parser)
    add = adder(parser.add_argument_group("Latent attention"))
    add(
        "attention",
        choices=list(OBJECTIVES),
        help="Use the attention decoder of onmt_varattn, trained with this objective. Without it, "
        "OpenNMT-py builds the decoder that its own options ask for.",
    )
    estimator_opt(add)
    add(
        "attention_size",
        type=int,
        default=0,
        help="Size in which queries and source states are compared (mlp and scaled_dot). "
        "0: that of the decoder.",
    )
    add(
        "decoder_init",
        choices=["zero", "encoder"],
        default="zero",
        help="The decoder's first state: zero, as in the paper, or the encoder's last state "
        "(projected where sizes differ).",
    )
    add(
        "null_alignment",
        action="store_true",
        default=False,
        help="Add a NULL source position with a learned vector, so that a target word may come from "
        "nowhere. Links to it are not links.",
    )
    add(
        "relaxed_distribution",
        choices=list(RELAXED),
        help="Distribution over mixtures of positions, for prior and posterior of -attention relaxed. "
        "Default: dirichlet.",
    )
    add(
        "embedding_dropout",
        type=float,
        default=0.0,
        help="Dropout on the word embeddings of both sides. OpenNMT-py's RNNs have none.",
    )
    add = adder(parser.add_argument_group("Posterior"))
    add(
        "posterior",
        choices=["amortized", "svi", "savi", "external"],
        help="Where the posterior of variational and relaxed attention comes from: an inference network "
        "(amortized, the default), gradient steps for each sentence from a flat start (svi) or from the "
        "inference network's answer (savi), both with -attention_estimator enum, or alignments from a "
        "file (external, not for relaxed): path_align of each corpus, which onmt_preprocess -train_align "
        "writes.",
    )
    add(
        "posterior_rnn",
        choices=["brnn", "rnn", "mean"],
        help="What the inference network reads source and target with; mean: embeddings alone. "
        "Default: brnn.",
    )
    add("posterior_rnn_size", type=int, help="Size of the inference network. Default: -enc_rnn_size.")
    add("posterior_layers", type=int, help="Layers of the inference network. Default: -enc_layers.")
    add("posterior_dropout", type=float, help="Dropout of the inference network. Default: -dropout.")


def saved_words() -> dict[str, list[str]]:
    """What a checkpoint may have for options for which the command line takes other words, or any."""
    return {
        "attention_estimator": sorted({name for one in OBJECTIVES.values() for name in one.estimators}),
        "copy_attn_type": ["dot", "general", "mlp", "none", *SCORES],
        "self_attn_type": ["scaled-dot", "average"],
        "early_stopping_criteria": ["ppl", "accuracy"],
        "data_type": ["text"],
    }


def estimator_opt(add: Callable[..., None]) -> None:
    """How the expectation of an objective is taken."""
    add(
        "attention_estimator",
        choices=[name for name in saved_words()["attention_estimator"] if name != "none"],
        help="How the objective's expectation is taken. Default: sample for hard, variational and "
        "relaxed, enum for marginal. hard: sample, enum, rloo or rebar; variational: any.",
    )


def train_opts(parser: Any) -> None:
    """Options of a training run."""
    from onmt_varattn.nmt.presets import preset_opt  # visual question answering has none, and no nmt/

    add = objective_opts(parser)
    add(
        "posterior_smoothing",
        type=float,
        help="Share of an external posterior that is spread over all source words. Default: 0.1.",
    )
    test_opts(parser)
    add = adder(parser.add_argument_group("Training (onmt_varattn)"))
    add(
        "text_processing",
        help="Tokenisation and subword models, as written by onmt_preprocess, to keep in the "
        "checkpoint, so that it translates raw text.",
    )
    preset_opt(add)
    run_opts(add)
    for action in parser._actions:
        if action.dest == "overwrite":  # OpenNMT's, which asks for it before it writes over its own files
            action.help = OVERWRITE
    add(
        "dist_timeout",
        type=float,
        default=600.0,
        help="Seconds that a process waits for the others of a distributed run before it gives up.",
    )


def objective_opts(parser: Any) -> Callable[..., None]:
    """How an objective is trained; returns what adds to the group."""
    add = adder(parser.add_argument_group("Training latent attention"))
    add(
        "attention_samples",
        type=int,
        help="Samples per word, or per question. Default: 5 for rws, iwae, vimco and rloo, else 1.",
    )
    add("attention_top", type=int, help="Alignments that sum_and_sample sums exactly. Default: 3.")
    add(
        "attention_warmup_steps",
        type=CountOr("auto"),
        help="First train a simpler objective while the posterior is fitted to the prior: for this many "
        "steps, or with auto until the alignments of the run have formed. Default: auto; 0 with "
        "-posterior external and for questions about images, which have no auto.",
    )
    add(
        "attention_warmup",
        choices=list(WARM_UPS),
        help="What is trained first: soft attention, or by enumeration the bound of hard attention or the "
        "exact marginal likelihood. Default: soft.",
    )
    add(
        "baseline",
        choices=list(BASELINES),
        help="Baseline of sampled rewards: the log-likelihood of soft attention, a running average, the same "
        "plus a small network on the query (learned), or none. Default: soft.",
    )
    add("kl_weight", type=float, help="Weight of KL(posterior, prior). Default: 1.")
    add("kl_warmup_steps", type=int, help="Let the KL's weight grow from 0 over this many steps. Default: 0.")
    add(
        "gumbel_temperature",
        type=float,
        help="Temperature of relaxed draws (gumbel, rebar, -relaxed_distribution concrete). Default: 0.5.",
    )
    add("gumbel_min_temperature", type=float, help="Anneal to this temperature. Default: do not anneal.")
    add("gumbel_anneal_steps", type=int, help="Steps to anneal over, linearly. Default: 10000.")
    add("gumbel_hard", action="store_true", default=False, help="Straight-through draws.")
    add("sparse_function", choices=list(SPARSE), help="Of a sparse posterior. Default: entmax15.")
    add("svi_steps", type=int, help="Gradient steps of svi and savi. Default: 10.")
    add("svi_lr", type=float, help="Step size of svi and savi. Default: 1.")
    add("reward_weight", type=float, help="Weight of the sampled gradient of hard attention. Default: 1.")
    add("entropy_weight", type=float, help="Weight of the prior's entropy in hard attention. Default: 0.")
    return add


OVERWRITE = (
    "Replace an earlier run with this -save_model: its checkpoints are removed once the new run has saved "
    "one of its own."
)


def run_opts(add: Callable[..., None]) -> None:
    """How a run follows its validation, goes on after a stop, and reports."""
    add(
        "decay_on_plateau",
        type=int,
        default=0,
        help="Multiply the learning rate by -learning_rate_decay each time this many validations "
        "in a row bring no lower perplexity; replaces the decay by steps. 0: off.",
    )
    add(
        "resume",
        action="store_true",
        default=False,
        help="Go on from the newest whole checkpoint of this -save_model as if the run had never stopped; "
        "start anew if there is none. Give the options of the run again.",
    )
    add(
        "bad_steps_limit",
        type=int,
        default=10,
        help="Stop after this many steps in a row whose loss or gradient is not finite. Such steps are left "
        "out, and reported with what was in them.",
    )
    add(
        "metrics_file",
        help="With -attention: append each report as a line of JSON here. Default: -save_model with "
        ".metrics.jsonl; 'none' for no file.",
    )


def test_opts(parser: Any) -> None:
    """Which alignments are looked at in validation and decoding."""
    add = adder(parser.add_argument_group("Attention at test time"))
    add(
        "test_attention",
        choices=["exact", "soft"],
        help="exact: the mixture over all alignments, whatever the training; soft: their mean. "
        "Default: as trained (soft for soft, samples for relaxed, else exact).",
    )
    add(
        "kmax",
        type=int,
        default=0,
        help="Mix only the K most probable alignments, renormalised. 0: all. Also for soft models.",
    )


def translate_opts(parser: Any) -> None:
    """Options of a translation run."""
    test_opts(parser)
    add = adder(parser.add_argument_group("Translation (onmt_varattn)"))
    add("beam", type=int, dest="beam_size", default=5, help="Same as -beam_size.")
    add("attention_samples", type=int, help="Samples a word for relaxed models. Default: 10.")
    add(
        "eos_norm",
        type=float,
        default=0.0,
        help="In beam search, subtract this times source length / (length so far + 1) from the "
        "score of ending a translation. The paper uses 3. 0: off.",
    )
    add(
        "pretokenized",
        action="store_true",
        default=False,
        help="The source (and -tgt) is already tokenised and split into subwords; leave the "
        "output so. Only matters for models that carry their text processing.",
    )
    nonfinite_opt(add)
    add(
        "dump_attention",
        help="Write the attention of each sentence, between tokens, as a line of JSON here: the prior of "
        "the best translation, and with -tgt prior, posterior and exact posterior of the reference. For a "
        "single model trained with -attention.",
    )
    report_align = next(action for action in parser._actions if action.dest == "report_align")
    report_align.help = (
        "Write the most probable source word of each word of a translation behind it, counted from 0: "
        "'a translation ||| 0-0 1-1'. Words that come from NULL (-null_alignment) have none. With "
        "-with_score the score comes last, after a tab. Words are tokens with -pretokenized, or if the model "
        "does not carry its text processing."
    )


def nonfinite_opt(add: Callable[..., None]) -> None:
    """For commands that work with a trained model."""
    add(
        "allow_nonfinite",
        action="store_true",
        default=False,
        help="Work with a model even if some of its parameters are infinite or not numbers.",
    )


def adder(group: Any) -> Callable[..., None]:
    """Add options by name, with one dash or two as OpenNMT has them; unset ones are None."""

    def add(name: str, **kwargs: Any) -> None:
        group.add_argument(f"-{name}", f"--{name}", **{"default": None, **kwargs})

    return add


def _extend_global_attention(parser: Any) -> None:
    """Let OpenNMT's own option take our scores, and leave its default to `resolve_defaults`."""
    action = next(action for action in parser._actions if action.dest == "global_attention")
    action.choices = [*action.choices, *(name for name in SCORES if name not in action.choices)]
    action.default = None
    action.help = (
        "The attention score: dot or general (Luong), mlp (Bahdanau), with -attention also "
        "scaled_dot. Default: mlp with -attention, general without."
    )


def objective_of(opt: Any) -> type[Objective]:
    """The class behind -attention."""
    if opt.attention not in OBJECTIVES:
        raise UserError(f"-attention {opt.attention} is not known here; there are: {', '.join(OBJECTIVES)}")
    return OBJECTIVES[opt.attention]


def estimator_of(opt: Any) -> type[Estimator]:
    """The class behind -attention_estimator."""
    return ESTIMATORS[objective_of(opt).estimators[opt.attention_estimator]]


def resolve_defaults(opt: Any) -> None:
    """Fill in defaults that depend on other options."""
    if opt.global_attention is None:
        opt.global_attention = "mlp" if opt.attention else "general"
    if not opt.attention:
        return
    known = objective_of(opt).estimators
    if opt.attention_estimator is None:
        iterated = getattr(opt, "posterior", None) in ("svi", "savi")
        opt.attention_estimator = "enum" if iterated and "enum" in known else next(iter(known))
    if opt.attention_estimator in known:
        for name, (applies, default) in _CONDITIONAL.items():
            if getattr(opt, name, 0) is None and applies(opt):
                setattr(opt, name, default(opt) if callable(default) else default)
        if opt.posterior == "external":
            opt.lambda_align = 1.0  # what makes OpenNMT read alignments; its loss is not used


def take_up(opt: Any, saved: Any) -> None:
    """Fill in the options of a run that goes on with a checkpoint (`-train_from`).

    OpenNMT builds the model from the options saved with it, whatever this run says of sizes. The
    objective may change: what this run does not say is as it was, as far as it still applies.
    """
    attention = getattr(saved, "attention", None)
    if attention is None:
        if opt.attention:
            _take_up_stock(opt, saved)
        return
    _take_sizes(opt, saved)
    for name in _NETWORK:
        before, now = getattr(saved, name, None), getattr(opt, name)
        if before is not None and now is not None and before != now:
            raise UserError(f"-{name} {now}: the posterior in {opt.train_from} has {before}; leave it out")
    changed = any(
        getattr(opt, name) not in (None, getattr(saved, name, None))
        for name in ("attention", "attention_estimator", "posterior", "relaxed_distribution")
    )
    opt.attention = opt.attention or attention
    opt.null_alignment = opt.null_alignment or getattr(saved, "null_alignment", False)
    if not changed:
        opt.attention_estimator = saved.attention_estimator
        opt.gumbel_hard = opt.gumbel_hard or getattr(saved, "gumbel_hard", False)
    for name in _CONDITIONAL:
        if getattr(opt, name) is None and (name in _NETWORK or not changed):
            setattr(opt, name, getattr(saved, name, None))
    if not objective_of(opt).has_posterior or opt.posterior in ("svi", "external"):
        forget_posterior(opt)


def forget_posterior(opt: Any) -> None:
    """Leave out what options say of an inference network that is not there."""
    for name in _NETWORK:
        if hasattr(opt, name):
            setattr(opt, name, None)


def _take_sizes(opt: Any, saved: Any) -> None:
    feeds = getattr(saved, "input_feed", 1)
    if feeds and not opt.input_feed:
        raise UserError(f"-input_feed 0: {opt.train_from} was trained with -input_feed 1; leave it out")
    opt.input_feed = feeds
    for name in ("enc_rnn_size", "dec_rnn_size", "enc_layers", "dec_layers", "rnn_type", "encoder_type"):
        setattr(opt, name, getattr(saved, name))
    opt.rnn_size = opt.layers = -1


def _take_up_stock(opt: Any, saved: Any) -> None:
    """Fill in the options of a run that gives a model of OpenNMT-py's own our decoder.

    Whatever fits is kept (`nmt/stock.py`); the optimiser, whose state does not, starts anew.

    Raises:
        UserError: the model has parts that ours has no place for.
    """
    for name, choices in _TAKEN_FROM_STOCK.items():
        value = getattr(saved, name, choices[0])
        if value not in choices:
            given, need = f"-{name} {value}", f"with -{name} {' or '.join(map(str, choices))}"
            if choices[0] in (None, False):
                given, need = f"-{name}", "without it"
            raise UserError(
                f"-attention {opt.attention}: {opt.train_from} was trained with {given}, which the attention "
                f"decoder has no counterpart of; use a model trained {need}"
            )
    if saved.enc_layers != saved.dec_layers:
        raise UserError(
            f"-attention {opt.attention}: {opt.train_from} has {saved.enc_layers} layers in the encoder and "
            f"{saved.dec_layers} in the decoder; use a model with equally many"
        )
    if opt.reset_optim not in ("none", "all"):
        raise UserError(
            f"-reset_optim {opt.reset_optim}: {opt.train_from} gets another decoder, and the optimiser "
            "starts anew; leave it out"
        )
    _take_sizes(opt, saved)
    opt.global_attention, opt.decoder_init, opt.attention_size = saved.global_attention, "encoder", 0
    opt.reset_optim = "all"


def change_attention(saved: Any, opt: Any) -> None:
    """Train a saved model with the objective of this run; its sizes stay."""
    if not saved.attention:  # OpenNMT-py's own
        saved.decoder_init, saved.attention_size = opt.decoder_init, opt.attention_size
        saved.text_processing = getattr(saved, "text_processing", None) or opt.text_processing
    for name in ATTENTION_OPTIONS:
        setattr(saved, name, getattr(opt, name))


_NETWORK = ("posterior_rnn", "posterior_rnn_size", "posterior_layers", "posterior_dropout")


def _has_posterior(opt: Any) -> bool:
    return objective_of(opt).has_posterior


def _has_network(opt: Any) -> bool:
    return _has_posterior(opt) and opt.posterior in ("amortized", "savi")


def _iterates(opt: Any) -> bool:
    return _has_posterior(opt) and opt.posterior in ("svi", "savi")


def _uses(setting: str) -> Callable[[Any], bool]:
    return lambda opt: setting in estimator_of(opt).uses


# Options that only some models have: when they apply, and their default then. The order matters:
# later conditions look at earlier options.
_CONDITIONAL: dict[str, tuple[Callable[[Any], bool], Any]] = {
    "posterior": (_has_posterior, "amortized"),
    "posterior_rnn": (_has_network, "brnn"),
    "posterior_rnn_size": (_has_network, lambda opt: opt.enc_rnn_size if opt.rnn_size < 0 else opt.rnn_size),
    "posterior_layers": (_has_network, lambda opt: opt.enc_layers if opt.layers < 0 else opt.layers),
    "posterior_dropout": (
        _has_network,
        lambda opt: opt.dropout[0] if isinstance(opt.dropout, list) else opt.dropout,
    ),
    "attention_samples": (
        _uses("samples"),
        lambda opt: estimator_of(opt).usual_samples,
    ),
    "attention_top": (_uses("top"), 3),
    "attention_warmup_steps": (
        lambda opt: opt.attention != "soft",
        lambda opt: 0 if opt.posterior == "external" else "auto",  # given alignments need not form
    ),
    "attention_warmup": (lambda opt: opt.attention != "soft", "soft"),
    "baseline": (lambda opt: estimator_of(opt).needs_baseline, "soft"),
    "kl_weight": (lambda opt: _has_posterior(opt) and estimator_of(opt).linear, 1.0),
    "kl_warmup_steps": (lambda opt: _has_posterior(opt) and estimator_of(opt).linear, 0),
    "relaxed_distribution": (_uses("relaxed"), "dirichlet"),
    "gumbel_temperature": (
        lambda opt: (
            _uses("temperature")(opt)
            and (not _uses("relaxed")(opt) or getattr(opt, "relaxed_distribution", None) == "concrete")
        ),
        0.5,
    ),
    "gumbel_min_temperature": (_uses("least_temperature"), lambda opt: opt.gumbel_temperature),
    "gumbel_anneal_steps": (_uses("anneal_steps"), 10_000),
    "sparse_function": (_uses("sparse"), "entmax15"),
    "posterior_smoothing": (lambda opt: opt.posterior == "external", 0.1),
    "svi_steps": (_iterates, 10),
    "svi_lr": (_iterates, 1.0),
    "reward_weight": (lambda opt: opt.attention == "hard" and _uses("reward_weight")(opt), 1.0),
    "entropy_weight": (lambda opt: opt.attention == "hard", 0.0),
}

# What a run says of its objective, whatever model it began from.
ATTENTION_OPTIONS = (
    "attention",
    "attention_estimator",
    "gumbel_hard",
    "lambda_align",
    "null_alignment",
    *_CONDITIONAL,
)


# What OpenNMT's other decoders and losses have and ours does not: option, value without it.
_NOT_WITH_ATTENTION = {
    "copy_attn": False,
    "coverage_attn": False,
    "context_gate": None,
    "lambda_align": 0.0,
    "lambda_coverage": 0.0,
    "generator_function": "softmax",
    "global_attention_function": "softmax",
    "bridge": False,
}

# What a model of OpenNMT-py's own must have been trained with to get our decoder: option, values.
_TAKEN_FROM_STOCK: dict[str, list[Any]] = {
    "model_task": ["seq2seq"],
    "encoder_type": ["rnn", "brnn"],
    "decoder_type": ["rnn"],
    "rnn_type": ["LSTM", "GRU"],
    "global_attention": ["general", "dot", "mlp"],
    "input_feed": [1],
    **{name: [_NOT_WITH_ATTENTION[name]] for name in _NOT_WITH_ATTENTION if not name.startswith("lambda_")},
}


def check_model(opt: Any) -> None:
    """Refuse a model with `-attention` that cannot be built.

    Raises:
        UserError: one sentence that names the option and what to use.
    """
    check_attention(opt)
    for name, value in _NOT_WITH_ATTENTION.items():
        if name == "lambda_align" and opt.posterior == "external":
            continue
        if getattr(opt, name, value) != value:
            raise UserError(
                f"-{name} {getattr(opt, name)} does not go with -attention; leave one of them out"
            )
    _check_choice(opt, "encoder_type", ["rnn", "brnn"])
    _check_choice(opt, "decoder_type", ["rnn"])
    _check_choice(opt, "rnn_type", ["LSTM", "GRU"])
    _check_choice(opt, "global_attention", list(SCORES))
    if getattr(opt, "model_task", "seq2seq") != "seq2seq":
        raise UserError(f"-model_task {opt.model_task} does not go with -attention; use seq2seq")
    for name in ("enc_rnn_size", "dec_rnn_size", "enc_layers", "dec_layers"):
        if getattr(opt, name) < 1:
            raise UserError(f"-{name} {getattr(opt, name)} must be at least 1")
    if opt.attention_size < 0:
        raise UserError(f"-attention_size {opt.attention_size} must not be negative")
    if opt.encoder_type == "brnn" and opt.enc_rnn_size % 2:
        raise UserError(
            f"-enc_rnn_size {opt.enc_rnn_size} must be even, for two directions (-encoder_type brnn)"
        )
    if opt.global_attention == "dot" and opt.enc_rnn_size != opt.dec_rnn_size:
        raise UserError(
            f"-global_attention dot needs equal -enc_rnn_size ({opt.enc_rnn_size}) and -dec_rnn_size "
            f"({opt.dec_rnn_size}); use mlp, general or scaled_dot"
        )
    if opt.decoder_init == "encoder" and opt.enc_layers != opt.dec_layers:
        raise UserError(
            f"-decoder_init encoder needs equal -enc_layers ({opt.enc_layers}) and "
            f"-dec_layers ({opt.dec_layers})"
        )
    if opt.share_decoder_embeddings and opt.tgt_word_vec_size != opt.dec_rnn_size:
        raise UserError(
            f"-share_decoder_embeddings needs equal -tgt_word_vec_size ({opt.tgt_word_vec_size}) and "
            f"-dec_rnn_size ({opt.dec_rnn_size})"
        )
    if opt.share_embeddings and opt.src_word_vec_size != opt.tgt_word_vec_size:
        raise UserError(
            f"-share_embeddings needs equal -src_word_vec_size ({opt.src_word_vec_size}) and "
            f"-tgt_word_vec_size ({opt.tgt_word_vec_size})"
        )


def check_attention(opt: Any) -> None:
    """Refuse combinations of objective, estimator and their options that make no sense."""
    known = objective_of(opt).estimators
    if opt.attention_estimator not in known:
        fits = " or ".join(known) if list(known) != ["none"] else "none"
        raise UserError(
            f"-attention_estimator {opt.attention_estimator} does not go with -attention {opt.attention}; "
            + (f"use {fits}" if fits != "none" else "leave it out")
        )
    for name, (applies, _) in _CONDITIONAL.items():
        if getattr(opt, name, None) is not None and not applies(opt):
            raise UserError(
                f"-{name} does not go with -attention {opt.attention}"
                + (
                    ""
                    if opt.attention_estimator == "none"
                    else f" -attention_estimator {opt.attention_estimator}"
                )
                + (f" -posterior {opt.posterior}" if getattr(opt, "posterior", None) else "")
                + "; leave it out"
            )
    if getattr(opt, "gumbel_hard", False) and not _uses("hard_gumbel")(opt):
        raise UserError("-gumbel_hard is for -attention_estimator gumbel; leave it out")
    if _iterates(opt) and opt.attention_estimator != "enum":
        raise UserError(
            f"-posterior {opt.posterior} does not go with -attention_estimator "
            f"{opt.attention_estimator}; use enum"
        )
    if opt.posterior == "external" and opt.attention == "relaxed":
        raise UserError("-posterior external does not go with -attention relaxed; use variational")
    smoothing = getattr(opt, "posterior_smoothing", None)
    if smoothing is not None and not 0 < smoothing <= 1:
        raise UserError(f"-posterior_smoothing {smoothing} must be above 0 and at most 1")
    samples = getattr(opt, "attention_samples", None)
    fewest = estimator_of(opt).fewest_samples
    if samples is not None and samples < fewest:
        raise UserError(f"-attention_samples {samples}: {opt.attention_estimator} needs at least {fewest}")
    for name in (
        "attention_top",
        "posterior_layers",
        "posterior_rnn_size",
        "svi_steps",
        "gumbel_anneal_steps",
    ):
        if (value := getattr(opt, name, None)) is not None and value < 1:
            raise UserError(f"-{name} {value} must be at least 1")
    for name in ("gumbel_temperature", "gumbel_min_temperature", "svi_lr"):
        if (value := getattr(opt, name, None)) is not None and value <= 0:
            raise UserError(f"-{name} {value} must be above 0")
    least, first = (getattr(opt, f"gumbel_{name}", None) for name in ("min_temperature", "temperature"))
    if least is not None and first is not None and least > first:
        raise UserError(f"-gumbel_min_temperature {least} is above -gumbel_temperature {first}")
    for name in ("attention_warmup_steps", "kl_warmup_steps", "kl_weight"):
        if (value := getattr(opt, name, None)) not in (None, "auto") and value < 0:
            raise UserError(f"-{name} {value} must not be negative")
    if getattr(opt, "posterior_rnn", None) == "brnn" and opt.posterior_rnn_size % 2:
        raise UserError(f"-posterior_rnn_size {opt.posterior_rnn_size} must be even, for two directions")
    smoothing = getattr(opt, "label_smoothing", 0.0)
    first = WARM_UPS[opt.attention_warmup] if getattr(opt, "attention_warmup", None) else objective_of(opt)
    if smoothing and not (objective_of(opt).linear and estimator_of(opt).linear and first.linear):
        raise UserError(
            f"-label_smoothing {smoothing} does not go with this objective, which takes logarithms of sums "
            "of likelihoods; leave it out"
        )
    check_test(opt, opt.attention)


def check_test(opt: Any, attention: str | None) -> None:
    """Refuse ways of decoding that make no sense for a model with this attention."""
    kmax, test_attention = getattr(opt, "kmax", 0), getattr(opt, "test_attention", None)
    if kmax < 0:
        raise UserError(f"-kmax {kmax} must not be negative")
    if kmax and test_attention == "soft":
        raise UserError("-kmax does not go with -test_attention soft; leave one of them out")
    if attention == "relaxed" and (kmax or test_attention == "exact"):
        raise UserError(
            "-kmax and -test_attention exact do not go with -attention relaxed, which has no single "
            "alignments; use -attention_samples, or -test_attention soft"
        )
    if attention is None and (kmax or test_attention):
        raise UserError("-kmax and -test_attention are for models trained with -attention")


def _check_choice(opt: Any, name: str, choices: list[str]) -> None:
    value = getattr(opt, name)
    if value not in choices:
        raise UserError(f"-{name} {value} does not go with -attention; use {' or '.join(choices)}")


def check_train(opt: Any) -> None:
    """Refuse a training run that would go wrong after long work, or silently.

    Raises:
        UserError: one sentence that names the option and what to use.
    """
    check_processes(opt)
    check_ranges(opt)
    if opt.model_dtype == "fp16" and not torch.cuda.is_available():
        raise UserError("-model_dtype fp16 needs a CUDA device; leave it out for the CPU")
    if not opt.attention:
        check_test(opt, None)
        for name in ("embedding_dropout", "null_alignment"):
            if getattr(opt, name):
                raise UserError(f"-{name} is for models with -attention; give both, or leave it out")
    if opt.attention and opt.truncated_decoder:
        raise UserError("-truncated_decoder does not go with -attention; leave it out")


def check_ranges(opt: Any) -> None:
    """Refuse numbers that no run can have, be they from the command line or from a checkpoint.

    Raises:
        UserError: one sentence that names the option and its range.
    """
    if opt.train_steps < 1 and not opt.single_pass:
        raise UserError(f"-train_steps {opt.train_steps} must be at least 1")
    for name, rates in (("dropout", opt.dropout), ("embedding_dropout", [opt.embedding_dropout])):
        for rate in rates:
            if not 0 <= rate < 1:
                raise UserError(f"-{name} {rate} must be at least 0 and below 1")
    if min(opt.accum_count, default=0) < 1:
        raise UserError(f"-accum_count {min(opt.accum_count, default='')} must be at least 1")
    for name in ("learning_rate", "decay_on_plateau"):
        if getattr(opt, name) < 0:
            raise UserError(f"-{name} {getattr(opt, name)} must not be negative")
    for name in ("label_smoothing", "adam_beta1", "adam_beta2"):
        if not 0 <= getattr(opt, name) < 1:
            raise UserError(f"-{name} {getattr(opt, name)} must be at least 0 and below 1")
    for name in (
        "valid_steps",
        "report_every",
        "batch_size",
        "valid_batch_size",
        "decay_steps",
        "bucket_size",
        "src_vocab_size",
        "tgt_vocab_size",
        "bad_steps_limit",
    ):
        if getattr(opt, name) < 1:
            raise UserError(f"-{name} {getattr(opt, name)} must be at least 1")


def check_processes(opt: Any) -> None:
    """Refuse a distributed run that cannot start.

    Raises:
        UserError: one sentence that names the option and what to use.
    """
    cuda = torch.cuda.is_available()
    if opt.world_size < 1:
        raise UserError(f"-world_size {opt.world_size} must be at least 1")
    if opt.gpu_ranks and not cuda and (opt.world_size == 1 or opt.gpu_backend != "gloo"):
        raise UserError(
            f"-gpu_ranks {opt.gpu_ranks[0]}: torch finds no CUDA device; leave it out for the CPU "
            "(several processes: -gpu_backend gloo)"
        )
    if opt.dist_timeout <= 0:
        raise UserError(f"-dist_timeout {opt.dist_timeout:g} must be above 0")
    if opt.world_size == 1:
        return
    if not opt.gpu_ranks and opt.gpu_backend != "gloo":
        raise UserError(
            f"-world_size {opt.world_size} needs -gpu_ranks; on the CPU use -gpu_backend gloo instead"
        )
    if len(set(opt.gpu_ranks)) < len(opt.gpu_ranks) or not set(opt.gpu_ranks) <= set(range(opt.world_size)):
        raise UserError(
            f"-gpu_ranks {' '.join(map(str, opt.gpu_ranks))} must be different numbers "
            f"from 0 to {opt.world_size - 1} (-world_size {opt.world_size})"
        )
    for name in ("truncated_decoder", "n_sample", "dump_fields", "dump_transforms"):
        if getattr(opt, name):
            raise UserError(f"-{name} does not go with several processes; leave one of them out")
    if opt.optim == "sparseadam":
        raise UserError("-optim sparseadam does not go with several processes; use adam")


def check_translate(opt: Any) -> None:
    """Refuse a translation run that cannot work.

    Raises:
        UserError: one sentence that names the option and what to use.
    """
    if opt.beam_size < 1:
        raise UserError(f"-beam {opt.beam_size} must be at least 1")
    if opt.n_best < 1 or opt.n_best > opt.beam_size:
        raise UserError(f"-n_best {opt.n_best} must be between 1 and -beam ({opt.beam_size})")
    for name in ("batch_size", "max_length"):
        if getattr(opt, name) < 1:
            raise UserError(f"-{name} {getattr(opt, name)} must be at least 1")
    for name in ("shard_size", "min_length", "random_sampling_temp"):
        if getattr(opt, name) < 0:
            raise UserError(f"-{name} {getattr(opt, name)} must not be negative")
    if opt.min_length > opt.max_length:
        raise UserError(f"-min_length {opt.min_length} is above -max_length {opt.max_length}")
    if opt.random_sampling_topk < -1:
        raise UserError(f"-random_sampling_topk {opt.random_sampling_topk} must be -1 (all words) or above")
    if not 0 <= opt.random_sampling_topp <= 1:
        raise UserError(f"-random_sampling_topp {opt.random_sampling_topp} must be between 0 and 1")
    if opt.dump_beam:
        raise UserError("-dump_beam does not work in OpenNMT-py 2.3.0; leave it out")
    if opt.gpu >= 0 and not torch.cuda.is_available():
        raise UserError(f"-gpu {opt.gpu}: torch finds no CUDA device; leave it out for the CPU")
    if opt.tgt_prefix and not opt.tgt:
        raise UserError("-tgt_prefix needs the prefixes: give them with -tgt")
    if opt.dump_attention and opt.src == "-":
        raise UserError("-dump_attention does not go with -src - (standard input); use a file")
    if opt.dump_attention and getattr(opt, "transforms", None):
        raise UserError("-dump_attention does not go with -transforms; leave one of them out")
    if opt.eos_norm < 0:
        raise UserError(f"-eos_norm {opt.eos_norm} must not be negative")
    sampling = opt.random_sampling_topk or opt.random_sampling_topp
    if opt.eos_norm and sampling:
        raise UserError("-eos_norm is for beam search; it does not go with random sampling")
