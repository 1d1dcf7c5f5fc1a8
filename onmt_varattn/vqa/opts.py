"""Options of visual question answering; shared options are in `onmt_varattn.training.opts`."""

from typing import Any

import torch

from onmt_varattn.errors import UserError
from onmt_varattn.latent.objectives import OBJECTIVES
from onmt_varattn.latent.scores import SCORES
from onmt_varattn.training import opts

POSTERIORS = ["amortized", "svi", "savi"]


def model_opts(parser: Any) -> None:
    """Options that define a model."""
    add = opts.adder(parser.add_argument_group("Model"))
    whole = [name for name in OBJECTIVES if name != "relaxed"]  # boxes overlap: no mixtures of them
    add("attention", choices=whole, default="soft", help="The objective that the model is trained with.")
    opts.estimator_opt(add)
    add(
        "posterior",
        choices=POSTERIORS,
        help="Where the posterior of variational attention comes from: an inference network that sees the "
        "answer (amortized, the default), gradient steps for each question from a flat start (svi) or from "
        "the inference network's answer (savi), both with -attention_estimator enum.",
    )
    add("global_attention", choices=list(SCORES), default="mlp", help="The attention score.")
    add("word_vec_size", type=int, default=300, help="Size of word embeddings.")
    add("rnn_size", type=int, default=1024, help="Size of the LSTM's state, which is the query.")
    add("layers", type=int, default=1, help="Layers of the LSTM.")
    add("attention_size", type=int, default=512, help="Size in which questions and boxes are compared.")
    add("answer_vec_size", type=int, default=300, help="Size of the posterior's embeddings of answers.")
    add("dropout", type=float, default=0.3, help="Dropout.")


def train_opts(parser: Any) -> None:
    """Options of a training run."""
    add = opts.adder(parser.add_argument_group("Data"))
    add("data", required=True, help="What vqa_preprocess.py wrote: its -save_data.")
    add("embeddings", help="Word vectors to start from, as text: a word and its numbers a line (GloVe).")
    model_opts(parser)
    opts.objective_opts(parser)
    opts.test_opts(parser)
    add = opts.adder(parser.add_argument_group("Training"))
    add(
        "save_model", required=True, help="Checkpoints are SAVE_MODEL_step_N.pt, the best SAVE_MODEL_best.pt."
    )
    add("train_steps", type=int, default=20000, help="Steps in all.")
    add("batch_size", type=int, default=128, help="Questions a step.")
    add("valid_batch_size", type=int, default=128, help="Questions at a time in validation.")
    add("valid_steps", type=int, default=1000, help="Steps between validations.")
    add("save_checkpoint_steps", type=int, default=1000, help="Steps between checkpoints; 0: one at the end.")
    add("keep_checkpoint", type=int, default=-1, help="Checkpoints to keep besides the best. -1: all.")
    add(
        "early_stopping",
        type=int,
        default=0,
        help="Stop after this many validations without a lower NLL. 0: never.",
    )
    add("optim", choices=["adam", "sgd"], default="adam", help="Optimiser.")
    add("learning_rate", type=float, default=0.0003, help="Learning rate.")
    add("learning_rate_decay", type=float, default=0.5, help="What the rate is multiplied by when it falls.")
    add("start_decay_steps", type=int, default=50000, help="Lower the rate first after this many steps.")
    add("decay_steps", type=int, default=10000, help="Then every so many.")
    add("max_grad_norm", type=float, default=5.0, help="Scale gradients down to this norm. 0: never.")
    add("seed", type=int, default=1, help="Of parameters, dropout, draws, the order of questions and labels.")
    add("gpu_ranks", type=int, nargs="*", default=[], help="CUDA device to train on. Default: the CPU.")
    add("report_every", type=int, default=50, help="Steps between reports.")
    add("log_file", default="", help="Log to this file as well.")
    add("tensorboard", action="store_true", default=False, help="Write curves for TensorBoard.")
    add("tensorboard_log_dir", default="runs/onmt", help="Where.")
    opts.run_opts(add)
    add("overwrite", action="store_true", default=False, help=opts.OVERWRITE)


def resolve(opt: Any) -> None:
    """Check and complete options, before any file is looked at.

    Raises:
        UserError: one sentence that names the option and what to use.
    """
    given = opt.attention_warmup_steps
    if given == "auto":
        raise UserError(
            "-attention_warmup_steps auto compares the words of a sentence, and a question has one answer; "
            "give a number of steps"
        )
    opts.resolve_defaults(opt)
    if given is None and opt.attention_warmup_steps == "auto":
        opt.attention_warmup_steps = 0
    opts.check_attention(opt)
    least = {
        "word_vec_size": 1,
        "rnn_size": 1,
        "layers": 1,
        "attention_size": 1,
        "answer_vec_size": 1,
        "train_steps": 1,
        "batch_size": 1,
        "valid_batch_size": 1,
        "valid_steps": 1,
        "report_every": 1,
        "decay_steps": 1,
        "bad_steps_limit": 1,
        "save_checkpoint_steps": 0,
        "keep_checkpoint": -1,
        "early_stopping": 0,
        "decay_on_plateau": 0,
        "seed": 0,
        "learning_rate": 0,
        "max_grad_norm": 0,
        "learning_rate_decay": 0,
        "start_decay_steps": 0,
    }
    for name, value in least.items():
        if getattr(opt, name) < value:
            raise UserError(f"-{name} {getattr(opt, name)} must be at least {value}")
    if not 0 <= opt.dropout < 1:
        raise UserError(f"-dropout {opt.dropout} must be at least 0 and below 1")
    if opt.global_attention == "dot":
        raise UserError(
            "-global_attention dot compares queries with boxes as they are; use mlp, general or scaled_dot"
        )
    if len(opt.gpu_ranks) > 1:
        raise UserError(
            f"-gpu_ranks {' '.join(map(str, opt.gpu_ranks))}: questions are trained in one process; give one"
        )
    if opt.gpu_ranks:
        check_device("gpu_ranks", opt.gpu_ranks[0])
    if opt.metrics_file is None:
        opt.metrics_file = f"{opt.save_model}.metrics.jsonl"


def check_device(option: str, number: int) -> None:
    """Refuse a CUDA device that is not there.

    Raises:
        UserError: names the option.
    """
    if not torch.cuda.is_available():
        raise UserError(f"-{option} {number}: torch finds no CUDA device; leave it out for the CPU")
    devices = torch.cuda.device_count()
    if not 0 <= number < devices:
        raise UserError(f"-{option} {number}: torch finds {devices} CUDA device(s), counted from 0")


# What may differ between two parts of one run.
MAY_DIFFER = frozenset(
    (  # noqa: SIM905
        "data resume overwrite save_model train_steps report_every log_file tensorboard "
        "tensorboard_log_dir metrics_file save_checkpoint_steps keep_checkpoint gpu_ranks bad_steps_limit "
        "valid_batch_size embeddings"
    ).split()
)


def check_same(opt: Any, saved: dict[str, Any], path: str) -> None:
    """Refuse to resume another run.

    Raises:
        UserError: names all options that differ.
    """
    differ = [name for name in vars(opt) if name not in MAY_DIFFER and getattr(opt, name) != saved.get(name)]
    if differ:
        now = " ".join(f"-{name} {getattr(opt, name)}" for name in differ)
        had = " ".join(f"-{name} {saved.get(name)}" for name in differ)
        raise UserError(
            f"{now}: {path} has {had}, and -resume changes nothing of the kind; give that, "
            "or another -save_model"
        )
