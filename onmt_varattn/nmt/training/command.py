"""The command onmt_train: completes and checks options, starts processes, and trains."""

import copy
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.data.files import (
    check_corpora,
    check_data,
    check_links,
    check_vocabularies,
    has_validation,
    steps_per_pass,
)
from onmt_varattn.nmt.parsers import train_parser, validated_training, vocabulary_parser
from onmt_varattn.nmt.presets import complete, given_options
from onmt_varattn.nmt.settings import check_processes, check_ranges, check_train
from onmt_varattn.nmt.train_from import take_up
from onmt_varattn.training.checkpoints.fitting import taken_from
from onmt_varattn.training.checkpoints.runs import check_place
from onmt_varattn.utils.files import check_writable


def train(args: Sequence[str] | None = None) -> None:
    """Parse, check everything that can be checked before the long work, and train."""
    parser = train_parser(siblings=[vocabulary_parser()])
    opt = parser.parse_args(args)
    from onmt_varattn.nmt.training import run as training
    from onmt_varattn.training import launch
    from onmt_varattn.training import processes as world

    started = launch.is_started()
    if started:
        launch.follow_launcher()
        launch.take_part(opt)
    chosen = choose(opt, given_options(parser, args))
    if started:
        check_train(opt)
        here = world.join(opt.gpu_backend, opt.dist_timeout)
        opt.gpu_ranks = opt.gpu_ranks if here.device.type == "cuda" else []
    else:
        check_train(opt)
        if opt.world_size > 1:
            check(opt, world.World(), chosen)
            alone = len(opt.gpu_ranks or range(opt.world_size)) == opt.world_size
            port = None if alone else opt.master_port
            command = launch.own_command("onmt_varattn.bin.nmt.train", args)
            sys.exit(launch.start_processes(command, opt.gpu_ranks, opt.world_size, opt.master_ip, port))
        here = world.alone(cuda=bool(opt.gpu_ranks))
    try:
        check(opt, here, chosen, read=here.first and not launch.has_checked())
        keep_text_processing(opt)
        training.train(opt, here, chosen.filled)
    finally:
        world.leave()


class Chosen(NamedTuple):
    """Names of the options that were given, and the values filled in for others."""

    given: set[str]
    filled: dict[str, Any]


def choose(opt: Namespace, given: set[str]) -> Chosen:
    """Fill in options that are not given: the defaults of -attention, or of a preset."""
    if not (opt.attention or opt.preset):
        return Chosen(given, {})
    check_data(opt)
    check_processes(opt)
    check_ranges(opt)
    return Chosen(given, complete(opt, given, steps_per_pass, has_validation(opt)))


def check(opt: Namespace, world: Any, chosen: Chosen, read: bool = True) -> None:
    """Run OpenNMT-py's own checks and ours before the long work.

    Args:
        opt: all options.
        world: the processes that train together.
        chosen: which options were given, and which filled in.
        read: read corpora and vocabularies through; one process is enough.
    """
    from onmt_varattn.nmt.model import checkpoint
    from onmt_varattn.nmt.training import resume

    check_place(opt)
    begun = begun_from(opt)
    found = opt.resume and resume.find_checkpoint(opt, world)
    if opt.train_from:
        saved = checkpoint.load(opt.train_from)
        if found:
            with taken_from(opt.train_from, "the options of a run"):
                for one in (opt, begun):
                    kept = resume.keep_chosen(one, saved, chosen.given, chosen.filled)
            chosen.filled.clear()
            chosen.filled.update({name: getattr(opt, name) for name in kept})
            resume.check_same(begun, saved, opt.train_from, resume.is_spokesman(opt, world))
            opt.reset_optim = "none"
        take_up(opt, saved["opt"])
        if not found:
            count_on(opt, saved["optim"], chosen.filled)
            check_steps(opt, saved["optim"])
    check_data(opt)
    check_alignments(opt)
    if opt.metrics_file not in (None, "none"):
        check_writable(opt.metrics_file)
    trial = validated_training(opt)
    if read:
        check_corpora(trial.data, opt.skip_empty_level)
        if opt.posterior == "external" or trial.lambda_align:
            check_links(trial)
        check_vocabularies(trial)
    if not has_validation(opt) and (opt.decay_on_plateau or opt.early_stopping):
        option = "decay_on_plateau" if opt.decay_on_plateau else "early_stopping"
        raise UserError(f"-{option} needs validation data: a corpus named valid in -data")


def begun_from(opt: Namespace) -> Namespace:
    """The options of a run, with those that it took from the checkpoint of `-train_from` at its start."""
    from onmt_varattn.nmt.model import checkpoint

    begun = copy.deepcopy(opt)
    if opt.resume and opt.train_from and os.path.isfile(opt.train_from):
        take_up(begun, checkpoint.load(opt.train_from)["opt"])
    return begun


def count_on(opt: Namespace, optim: Any, filled: dict[str, Any]) -> None:
    """Add the steps of the checkpoint to a number of steps that is not given."""
    if "train_steps" in filled and isinstance(optim, dict) and opt.reset_optim != "all":
        opt.train_steps = filled["train_steps"] = opt.train_steps + optim["training_step"] - 1


def check_steps(opt: Namespace, optim: Any) -> None:
    """Refuse a checkpoint that has all steps already; OpenNMT would train one step more."""
    if isinstance(optim, dict) and opt.reset_optim != "all" and 0 < opt.train_steps < optim["training_step"]:
        done = optim["training_step"] - 1
        raise UserError(
            f"-train_steps {opt.train_steps}: {opt.train_from} has {done} steps already; give more"
        )


def check_alignments(opt: Namespace) -> None:
    """Check that all corpora have alignments where the posterior is made from them."""
    if opt.posterior != "external":
        return
    for name, corpus in (yaml.safe_load(opt.data) or {}).items():
        if not corpus.get("path_align"):
            raise UserError(
                f"-posterior external: corpus {name} has no path_align in -data; "
                "give alignments to onmt_preprocess (-train_align, -valid_align)"
            )


def keep_text_processing(opt: Namespace) -> None:
    """Replace the file name of the text processing by its content, which the checkpoint keeps."""
    if opt.text_processing:
        from onmt_varattn.nmt.text.processing import TextProcessing

        opt.text_processing = TextProcessing.load(opt.text_processing).to_dict()
