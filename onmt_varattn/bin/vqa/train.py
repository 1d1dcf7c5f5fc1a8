"""onmt_vqa_train: train a model that answers questions about images."""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from onmt_varattn.errors import UserError
from onmt_varattn.training.settings import conditional
from onmt_varattn.utils.cli import run, start_logging
from onmt_varattn.utils.files import check_writable
from onmt_varattn.vqa.settings import TrainSettings, check_device, check_training, vqa_train_parser


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: train(vqa_train_parser().parse_args(args), args))


def train(opt: Namespace, args: Sequence[str] | None = None) -> None:
    """Check everything that can be checked before the long work, and train.

    Args:
        opt: parsed options.
        args: the command-line arguments they are from; None: those of this process.
    """
    from onmt_varattn.training import launch, processes  # these import torch, which parsing does not
    from onmt_varattn.training.checkpoints.runs import check_place
    from onmt_varattn.vqa.data.dataset import Data
    from onmt_varattn.vqa.training import train as train_model

    if started := launch.is_started():
        launch.follow_launcher()
        launch.take_part(opt)
    unset = {
        name for name in ("attention_estimator", *conditional(TrainSettings)) if getattr(opt, name) is None
    }
    settings = check_training(opt)
    check_place(settings)
    if settings.metrics_file not in (None, "none"):
        check_writable(str(settings.metrics_file))
    log = settings.log_file
    if log and (os.path.isfile(log) or not os.path.exists(log)):  # not /dev/null
        check_writable(log)
    if settings.world_size > 1 and not started:
        if settings.gpu_ranks and sorted(settings.gpu_ranks) != list(range(settings.world_size)):
            raise UserError(
                f"-gpu_ranks {' '.join(map(str, settings.gpu_ranks))} must be the numbers from 0 to "
                f"{settings.world_size - 1} (-world_size {settings.world_size}); or use torchrun"
            )
        if settings.gpu_ranks:
            check_device("gpu_ranks", settings.world_size - 1)
        Data.load(settings.data)  # an error is reported once, not by every process
        command = launch.own_command("onmt_varattn.bin.vqa.train", args)
        sys.exit(launch.start_processes(command, settings.gpu_ranks, settings.world_size))
    world = processes.join("nccl", settings.dist_timeout) if started else None
    try:
        rank = 0 if world is None else world.rank
        start_logging(None if rank else log, rank)
        train_model(settings, unset, world)
    finally:
        processes.leave()


if __name__ == "__main__":
    main()
