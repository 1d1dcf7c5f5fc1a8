"""The interface to OpenNMT-py: the only module that replaces parts of it.

Each replaced part is a factory or a class that OpenNMT-py looks up by name. A replacement uses our code if
one of our options is set, and else the original, so that without our options OpenNMT-py computes the same as
without this package. Changed for all models, because the original fails or misleads with a current torch:

    checkpoints     are read as data, without Python's unpickler, and written atomically in their own format
    validation      also runs on the CPU
    translation     reports perplexity per token
    training        supports several processes, resuming and fault tolerance; see nmt/training/
"""

from argparse import Namespace
from collections.abc import Callable
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from onmt_varattn.errors import UserError

OPENNMT_VERSION = "2.3.0"

_registered = False


def register() -> None:
    """Register options, decoder, model, loss, trainer and search with OpenNMT-py. Idempotent.

    Raises:
        UserError: another version of OpenNMT-py is installed.
    """
    global _registered
    if _registered:
        return
    _check_version()
    _register_checkpoints()
    _register_options()
    _register_model()
    _register_training()
    _register_translation()
    _registered = True


def _check_version() -> None:
    try:
        found = version("OpenNMT-py")
    except PackageNotFoundError:
        found = "none"
    if found != OPENNMT_VERSION:
        raise UserError(
            f"onmt_varattn needs OpenNMT-py {OPENNMT_VERSION} and found {found}: "
            f"pip install OpenNMT-py=={OPENNMT_VERSION}"
        )


def _register_checkpoints() -> None:
    import onmt.bin.train
    import onmt.model_builder
    import onmt.models.model_saver

    from onmt_varattn.nmt.model import checkpoint
    from onmt_varattn.nmt.model.building import load_test_model

    def load_checkpoint(ckpt_path: str | None) -> dict[str, Any] | None:
        return checkpoint.load(ckpt_path) if ckpt_path else None

    onmt.model_builder.load_test_model = load_test_model
    onmt.models.model_saver.load_checkpoint = onmt.bin.train.load_checkpoint = load_checkpoint


def _register_options() -> None:
    import onmt.bin.train
    import onmt.opts
    from onmt.utils.parse import ArgumentParser

    from onmt_varattn.nmt import settings
    from onmt_varattn.utils.settings import Settings, add_to

    def after(stock: Callable[..., None], ours: type[Settings]) -> Callable[..., None]:
        @wraps(stock)
        def both(parser: Any, *args: Any, **kwargs: Any) -> None:
            stock(parser, *args, **kwargs)
            add_to(parser, ours)

        return both

    onmt.opts.model_opts = after(onmt.opts.model_opts, settings.PosteriorSettings)
    onmt.opts.translate_opts = after(onmt.opts.translate_opts, settings.TranslateSettings)
    onmt.opts.train_opts = after(onmt.opts.train_opts, settings.TrainSettings)
    onmt.bin.train.train_opts = onmt.opts.train_opts

    stock_update = ArgumentParser.update_model_opts.__func__
    stock_validate = ArgumentParser.validate_model_opts.__func__

    def update_model_opts(cls: type, opt: Namespace) -> None:
        settings.resolve_defaults(opt)
        stock_update(cls, opt)

    def validate_model_opts(cls: type, opt: Namespace) -> None:
        if opt.attention:
            settings.check_model(opt)
        else:
            stock_validate(cls, opt)

    ArgumentParser.update_model_opts = classmethod(update_model_opts)
    ArgumentParser.validate_model_opts = classmethod(validate_model_opts)


def _register_model() -> None:
    import onmt.model_builder

    from onmt_varattn.nmt.model.building import (
        build_alignment_model,
        check_parameters,
        finish_alignment_model,
    )

    stock_task_model = onmt.model_builder.build_task_specific_model
    stock_base_model = onmt.model_builder.build_base_model

    def build_task_specific_model(model_opt: Namespace, fields: Any) -> Any:
        build = build_alignment_model if model_opt.attention else stock_task_model
        return build(model_opt, fields)

    @wraps(stock_base_model)
    def build_base_model(
        model_opt: Namespace, fields: Any, gpu: bool, checkpoint: Any = None, gpu_id: int | None = None
    ) -> Any:
        if checkpoint is not None:
            check_parameters(model_opt, fields, checkpoint)
        model = stock_base_model(model_opt, fields, gpu, checkpoint, gpu_id)
        return finish_alignment_model(model, checkpoint) if model_opt.attention else model

    onmt.model_builder.build_task_specific_model = build_task_specific_model
    onmt.model_builder.build_base_model = build_base_model


def _register_training() -> None:
    import onmt
    import onmt.bin.train
    import onmt.utils.loss

    from onmt_varattn.nmt.model.building import AlignmentModel
    from onmt_varattn.nmt.training.loss import build_alignment_loss
    from onmt_varattn.nmt.training.run import train
    from onmt_varattn.nmt.training.statistics import AlignmentStatistics
    from onmt_varattn.nmt.training.task import TranslationTask

    stock_loss = onmt.utils.loss.build_loss_compute

    @wraps(stock_loss)
    def build_loss_compute(model: Any, tgt_field: Any, opt: Namespace, train: bool = True) -> Any:
        build = build_alignment_loss if isinstance(model, AlignmentModel) else stock_loss
        return build(model, tgt_field, opt, train)

    onmt.utils.loss.build_loss_compute = build_loss_compute
    onmt.utils.Statistics = AlignmentStatistics
    onmt.Trainer = TranslationTask
    onmt.bin.train.train = train


def _register_translation() -> None:
    import onmt.translate
    import onmt.translate.translator

    from onmt_varattn.nmt.search.beam import EosNormBeamSearch, EosNormScorer
    from onmt_varattn.nmt.search.translator import Translator

    onmt.translate.translator.BeamSearch = EosNormBeamSearch
    onmt.translate.GNMTGlobalScorer = EosNormScorer
    onmt.translate.translator.Translator = Translator
