"""Settings and parsers of visual question answering; settings of all tasks are in `training.settings`."""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onmt_varattn.errors import UserError
from onmt_varattn.training.settings import (
    AttentionSettings,
    CheckpointSettings,
    MixtureSettings,
    RunSettings,
    check_attention,
    check_mixture,
    fill_attention,
    refuse_changes,
    registered,
)
from onmt_varattn.utils.cli import Parser, parser_of
from onmt_varattn.utils.settings import Names, Settings, check, from_options, setting


@dataclass(kw_only=True)
class DataSettings(Settings):
    """Data of a training run."""

    title = "Data"

    data: str = setting(help="Prefix of the data: -save_data of onmt_vqa_preprocess.")
    embeddings: str | None = setting(
        None, help="Initial word vectors as text: one word and its numbers per line (GloVe)."
    )


@dataclass(kw_only=True)
class ModelSettings(AttentionSettings):
    """An answer model and the training of its attention."""

    title = "Model"

    # Boxes overlap, so that mixtures of them are not defined: no relaxed attention.
    attention: str = setting(
        "soft",
        choices=Names(lambda: [name for name in registered("objectives", "OBJECTIVES") if name != "relaxed"]),
        help="Training objective.",
    )
    posterior: str | None = setting(
        None,
        choices=["amortized", "svi", "savi"],
        help="Posterior of variational attention: an inference network that sees the answer (amortized, the "
        "default), gradient steps for each question from a flat start (svi) or from the inference network's "
        "output (savi), both with -attention_estimator enum.",
        applies=lambda it: it.has_posterior,
        usual="amortized",
    )
    global_attention: str = setting("mlp", choices=registered("scores", "SCORES"), help="Attention score.")
    attention_size: int = setting(512, help="Size in which questions and boxes are compared.", at_least=1)
    word_vec_size: int = setting(300, help="Size of word embeddings.", at_least=1)
    rnn_size: int = setting(1024, help="Size of the LSTM's state, which is the query.", at_least=1)
    layers: int = setting(1, help="Number of LSTM layers.", at_least=1)
    answer_vec_size: int = setting(300, help="Size of the posterior's answer embeddings.", at_least=1)
    dropout: float = setting(0.3, help="Dropout rate.", at_least=0, below=1)


@dataclass(kw_only=True)
class TrainSettings(RunSettings, MixtureSettings, ModelSettings, DataSettings):
    """All settings of onmt_vqa_train."""

    title = "Training"
    description = "Train a model that answers questions about images."

    optim: str = setting("adam", choices=["adam", "sgd"], help="Optimiser.")
    seed: int = setting(
        1,
        help="Random seed of parameters, dropout, samples, and the order of questions and labels.",
        at_least=0,
    )
    world_size: int = setting(
        1,
        help="Number of processes, each with -batch_size questions per step; with -gpu_ranks, one GPU each.",
        at_least=1,
    )
    dist_timeout: float = setting(
        600.0, help="Seconds that a process waits for the others of a distributed run.", above=0
    )


@dataclass(kw_only=True)
class PreprocessSettings(Settings):
    """All settings of onmt_vqa_preprocess."""

    description = "Prepare official VQA files and image features for onmt_vqa_train."

    train_questions: str = setting(help="Official JSON file of the training questions.")
    train_annotations: str = setting(help="Official JSON file of their annotations.")
    valid_questions: str = setting(help="Official JSON file of the validation questions.")
    valid_annotations: str = setting(help="Official JSON file of their annotations.")
    image_features: list[str] = setting(
        help="Boxes and features of the images: bottom-up-attention TSV, HDF5, .npz, or a directory of .npz "
        "files; several files are read one after the other.",
    )
    save_data: str = setting(
        help="Prefix of the output files, such as data/vqa, for -data of onmt_vqa_train."
    )
    overwrite: bool = setting(False, help="Replace existing files; they are lost even if this run fails.")
    answer_min_frequency: int = setting(
        9,
        help="Answer vocabulary: majority answers of at least this many training questions.",
        at_least=1,
        below=2**31,
    )
    word_min_frequency: int = setting(
        1, help="Minimum frequency of a known word in the training questions.", at_least=1, below=2**31
    )
    question_length: int = setting(
        14, help="Maximum number of words per question; the rest is cut off.", at_least=1, below=2**31
    )
    feature_type: str = setting(
        "float32",
        choices=["float32", "float16"],
        help="Type of the stored features; float16 takes half the space and is converted when read.",
    )
    split_seed: int = setting(
        1,
        help="Random seed of the split of the validation questions into validation and test.",
        at_least=0,
        below=2**31,
    )


@dataclass(kw_only=True)
class EvaluateSettings(CheckpointSettings):
    """All settings of onmt_vqa_evaluate, which evaluates models on data or asks one of them a question."""

    description = (
        "Evaluate models that answer questions about images: NLL, VQA accuracy, bounds, entropies. "
        "Or ask one of them a question: -image_features and -question."
    )

    model: list[str] = setting(help="Checkpoints, evaluated separately.")
    data: str | None = setting(
        None, help="Evaluate on this data: -save_data of onmt_vqa_preprocess.", applies=lambda it: not it.asks
    )
    part: str = setting("test", choices=["train", "valid", "test"], help="Part of the data.")
    kmax: list[int] = setting(
        [0, 1, 2, 5],
        help="Mix the K most probable boxes, for each of these K. 0: all, which is always included.",
        at_least=0,
    )
    gold: str | None = setting(
        None,
        help="Compare attention with the boxes of this file, such as gold.json of onmt_make_scenes.",
        applies=lambda it: not it.asks,
    )
    json: str | None = setting(None, help="Write all numbers to this JSON file.")
    predictions: str | None = setting(
        None,
        help="Write the answers of a single model to this file, in the official result format.",
        applies=lambda it: not it.asks,
    )
    batch_size: int = setting(128, help="Questions per batch.", at_least=1)
    question: str | None = setting(None, help="Ask this question.")
    image_features: str | None = setting(
        None, help="Features of the image: TSV, HDF5, .npz, or a directory of .npz files."
    )
    image_id: int | None = setting(
        None, help="Image id, if the file has several images.", applies=lambda it: it.asks
    )
    top: int = setting(5, help="Number of answers to print.", at_least=1)
    image: str | None = setting(None, help="Draw the boxes over this image.", applies=lambda it: it.asks)
    draw: str | None = setting(
        None,
        help="Draw the boxes into this file (.png, .svg, .pdf). Default with -image: answers.png.",
        applies=lambda it: it.asks,
    )

    @property
    def asks(self) -> bool:
        """Whether a question is asked."""
        return self.question is not None or self.image_features is not None

    def combination(self) -> str:
        """See `Settings`."""
        return "-question" if self.asks else "-data"


def vqa_train_parser() -> Parser:
    """All options of onmt_vqa_train."""
    return parser_of(TrainSettings)


def vqa_preprocess_parser() -> Parser:
    """All options of onmt_vqa_preprocess."""
    return parser_of(PreprocessSettings)


def vqa_evaluate_parser() -> Parser:
    """All options of onmt_vqa_evaluate."""
    return parser_of(EvaluateSettings)


def check_training(opt: Namespace) -> TrainSettings:
    """Checked and complete settings of onmt_vqa_train; no file is read.

    Raises:
        UserError: names the option and the remedy.
    """
    settings = from_options(TrainSettings, opt)
    resolve(settings)
    return settings


def check_evaluation(opt: Namespace) -> EvaluateSettings:
    """Checked settings of onmt_vqa_evaluate; no file is read.

    Raises:
        UserError: names the option and the remedy.
    """
    it = from_options(EvaluateSettings, opt)
    check(it)
    if not it.asks and not it.data:
        raise UserError("give -data to evaluate, or -image_features and -question to ask")
    if it.asks:
        for name in ("question", "image_features"):
            if getattr(it, name) is None:
                raise UserError(f"-{name} is needed too")
        if len(it.model) > 1:
            raise UserError(f"-model: {len(it.model)} models were given, but a question is for one")
    elif it.predictions and len(it.model) > 1:
        raise UserError(f"-predictions is for one model, but {len(it.model)} were given")
    if it.gpu >= 0:
        check_device("gpu", it.gpu)
    return it


def resolve(it: TrainSettings) -> None:
    """Check and complete settings, before any file is read.

    Raises:
        UserError: names the option and the remedy.
    """
    given = it.attention_warmup_steps
    if given == "auto":
        raise UserError(
            "-attention_warmup_steps auto compares the words of a sentence, and a question has one answer; "
            "give a number of steps"
        )
    fill_attention(it)
    if given is None and it.attention_warmup_steps == "auto":
        it.attention_warmup_steps = 0
    check_attention(it)
    check_mixture(it, it.attention)
    if it.global_attention == "dot":
        raise UserError(
            "-global_attention dot compares queries with boxes as they are; use mlp, general or scaled_dot"
        )
    if it.gpu_ranks and it.world_size == 1:
        if len(it.gpu_ranks) > 1:
            raise UserError(f"-gpu_ranks {' '.join(map(str, it.gpu_ranks))}: -world_size is 1; give one GPU")
        check_device("gpu_ranks", it.gpu_ranks[0])
    if it.gpu_ranks and it.world_size > 1:
        check_device("gpu_ranks", 0)
    if it.metrics_file is None:
        it.metrics_file = f"{it.save_model}.metrics.jsonl"


def check_device(option: str, number: int) -> None:
    """Check that a CUDA device exists.

    Raises:
        UserError: names the option.
    """
    import torch

    if not torch.cuda.is_available():
        raise UserError(f"-{option} {number}: torch finds no CUDA device; leave it out for the CPU")
    devices = torch.cuda.device_count()
    if not 0 <= number < devices:
        raise UserError(f"-{option} {number}: torch finds {devices} CUDA device(s), counted from 0")


# Settings that may differ between two parts of one run.
MAY_DIFFER = frozenset(
    (  # noqa: SIM905
        "data resume overwrite save_model train_steps report_every log_file tensorboard "
        "tensorboard_log_dir metrics_file save_checkpoint_steps keep_checkpoint gpu_ranks bad_steps_limit "
        "valid_batch_size embeddings dist_timeout"
    ).split()
)


def check_same(it: TrainSettings, saved: Mapping[str, Any], path: str) -> None:
    """Check that a resumed run has the settings of its checkpoint.

    Raises:
        UserError: names all options that differ.
    """
    now = {name: value for name, value in vars(it).items() if name not in MAY_DIFFER}
    now = {name: value for name, value in now.items() if value != saved.get(name)}
    refuse_changes(now, {name: saved.get(name) for name in now}, path, "-save_model")
