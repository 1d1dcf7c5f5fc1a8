"""Checkpoints loaded for translation, and the checks of translation options against them."""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from onmt.constants import ModelTask
from torch import nn

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.plugin import register
from onmt_varattn.nmt.search.translator import searcher


@dataclass(frozen=True)
class Loaded:
    """The contents of one checkpoint, or of several as an ensemble."""

    fields: dict[str, Any]
    model: nn.Module
    model_opt: Namespace

    @classmethod
    def from_opt(cls, opt: Namespace) -> "Loaded":
        """Read the checkpoints that the options name."""
        register()
        import onmt.decoders.ensemble
        import onmt.model_builder

        loader = onmt.model_builder if len(opt.models) == 1 else onmt.decoders.ensemble
        try:
            return cls(*loader.load_test_model(opt))
        except AssertionError as error:  # models of an ensemble that do not fit together
            raise UserError(f"-model {' '.join(opt.models)}: {error}") from None

    def translator(self, opt: Namespace, **kwargs: Any) -> Any:
        """The translator for these options; a language model has OpenNMT-py's.

        Args:
            opt: options of onmt_translate.
            kwargs: `logger` and `report_score` of OpenNMT-py's translator.

        Raises:
            UserError: the options do not fit the model.
        """
        words, most = len(self.fields["tgt"].base_field.vocab), opt.random_sampling_topk
        if most > words:
            raise UserError(
                f"-random_sampling_topk {most} is more than the {words} target words of the model; use "
                "fewer, or -1 for all"
            )
        if self.model_opt.model_task == ModelTask.LANGUAGE_MODEL and opt.report_align:
            raise UserError("-report_align: the model is a language model, which has no alignments")
        return searcher(self.model, self.fields, opt, self.model_opt, opt.report_align, **kwargs)
