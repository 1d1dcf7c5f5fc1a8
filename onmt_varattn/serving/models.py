"""The models that are served: OpenNMT's `ServerModel`, mended, and one thread that works on them."""

import concurrent.futures
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from onmt.constants import DefaultTokens
from onmt.translate.translation_server import ServerModel

from onmt_varattn.api import parse_options
from onmt_varattn.errors import UserError
from onmt_varattn.serving.config import ModelConfig
from onmt_varattn.serving.requests import Clone, Limits, RequestError, Translation

RETRY_AFTER = 10  # seconds

# What a client may set for a clone, with the most it may be; None for any value. None of these
# names a file, a device or code.
CLONE_OPTIONS: dict[str, int | None] = {
    **dict.fromkeys(("beam", "beam_size", "n_best"), 50),
    **dict.fromkeys(("max_length", "min_length"), 1000),
    **dict.fromkeys(("attention_samples", "kmax"), 100),
    **dict.fromkeys(("length_penalty", "alpha", "coverage_penalty", "beta", "stepwise_penalty", "ratio")),
    **dict.fromkeys(("random_sampling_topk", "random_sampling_topp", "random_sampling_temp", "seed")),
    **dict.fromkeys(("block_ngram_repeat", "replace_unk", "ban_unk_token", "report_align")),
    **dict.fromkeys(("test_attention", "eos_norm", "pretokenized")),
}

T = TypeVar("T")


class ServedModel(ServerModel):
    """OpenNMT's server model with strict options; a failure leaves it as it was.

    Args:
        config: what the configuration says of it.
        model_id: what clients call it.
    """

    def __init__(self, config: ModelConfig, model_id: int) -> None:
        self.config = config
        super().__init__({**config.options, "models": config.paths}, model_id, **config.settings)

    def parse_opt(self, opt: dict[str, Any]) -> Any:
        """Options by name -> a namespace; what OpenNMT leaves to argparse, which would exit."""
        options = {name: value for name, value in opt.items() if name != "models"}
        for name in ("model", "config", "save_config", "src", "tgt", "output", "src_feats", "dump_attention"):
            if name in options:
                raise UserError(f"'{name}' is for onmt_translate, not for a server; leave it out")
        if options.get("tgt_prefix"):
            options["tgt"] = "given by the client"
        whole_request = options.get("batch_size") == 0  # OpenNMT's way to say: all in one batch
        if whole_request:
            del options["batch_size"]
        parsed = parse_options(opt["models"], options)
        if whole_request:
            parsed.batch_size = 0
        parsed.cuda = parsed.gpu > -1
        return parsed

    def load(self, preload: bool = False) -> None:
        """Load it; if that fails, the next request may try again."""
        start = time.perf_counter()
        try:
            super().load(preload)
        finally:
            self.loading_lock.set()
        self.load_time = time.perf_counter() - start

    def sentence(self, item: dict[str, Any]) -> dict[str, Any]:
        """A client's sentence, without what OpenNMT stumbles over.

        A blank one is empty, or its spaces would come back twice; a reference that is no prefix
        would be scored for nobody, and an empty one cannot be.
        """
        src = item["src"] if item["src"].strip() else ""
        features = item.get("src_feats", {}) if src else {}
        prefix = item.get("ref") if self.opt.tgt_prefix else None
        return {**item, "src": src, "src_feats": features, "ref": prefix}

    def maybe_preprocess(self, sequence: dict[str, Any]) -> Any:
        """OpenNMT's, after the checks that need the model. It calls this for each sentence."""
        if self.opt.tgt_prefix and not sequence.get("ref"):
            raise RequestError(
                400, f"model {self.model_id} goes on with a prefix: each sentence needs a 'ref'"
            )
        known = [name for name, _ in self._source_fields()[1:]]
        given = sequence.get("src_feats", {})
        words = len(sequence["src"].split())
        if words and sorted(given) != sorted(known):
            names = ", ".join(known) or "none"
            raise RequestError(400, f"'src_feats' are not those of model {self.model_id}, which has {names}")
        for name, values in given.items():
            if words != len(values.split()):
                raise RequestError(400, f"'src_feats {name}' has not as many values as 'src' has words")
        return super().maybe_preprocess(sequence)

    def maybe_detokenize_with_align(self, sequence: str, src: str, side: str = "tgt") -> Any:
        """OpenNMT's, which a translation with the separator in it breaks."""
        if not self.opt.report_align:
            return super().maybe_detokenize_with_align(sequence, src, side)
        text, _, links = sequence.rpartition(DefaultTokens.ALIGNMENT_SEPARATOR)
        return self.maybe_detokenize(text, side), links and self.maybe_convert_align(src, text, links)

    def _source_fields(self) -> Sequence[Any]:
        fields = getattr(self.translator, "fields", None)  # CTranslate2's has none
        return list(fields["src"]) if fields else []


class Models:
    """All models by their ids.

    Whatever needs a model is done by one thread, request after request in the order they came:
    a model can only do one translation at a time, and torch keeps memory for every thread that
    calls it.

    Args:
        limits: how much clients may ask for.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._models: dict[int, ServedModel] = {}
        self._clones = 0
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "translation")

    def add(self, config: ModelConfig) -> ServedModel:
        """Set a model up, and load it if its configuration says so. Not for requests.

        Raises:
            UserError: it cannot be.
        """
        number = next(n for n in range(len(self._models) + 1) if n not in self._models)
        model_id = number if config.model_id is None else config.model_id
        try:
            model = self._thread.submit(ServedModel, config, model_id).result()
        except UserError as error:
            raise UserError(f"model {model_id}: {error}") from None
        except Exception as error:  # of a tokeniser or of the functions that a configuration names
            reason = str(error).strip().split("\n")[0]
            raise UserError(f"model {model_id}: {type(error).__name__}: {reason}") from error
        self._models[model_id] = model
        return model

    def close(self) -> None:
        """Let the translation that is under way end; no other begins."""
        self._thread.shutdown(cancel_futures=True)
        for model in self._models.values():
            model.stop_unload_timer()

    def listing(self) -> list[dict[str, Any]]:
        """What OpenNMT says of each model."""
        return [model.to_dict() for model in list(self._models.values())]

    def translate(self, request: Translation) -> list[list[dict[str, Any]]]:
        """OpenNMT's answer: n_best x sentences."""
        model = self._find(request.model_id)
        sentences = [model.sentence(item) for item in request.sentences]
        texts, scores, n_best, _, links = self._in_turn(lambda: model.run(sentences))
        answer: list[list[dict[str, Any]]] = [[] for _ in range(n_best)]
        for i, (text, score, align) in enumerate(zip(texts, scores, links, strict=True)):
            sentence = request.sentences[i // n_best]
            found = {"src": sentence["src"], "tgt": text, "n_best": n_best, "pred_score": score}
            if align and align[0] is not None:
                found["align"] = align
            answer[i % n_best].append(found)
        return answer

    def clone(self, model_id: int, request: Clone) -> ServedModel:
        """The same model once more, with a client's options in place of the configuration's."""
        original = self._find(model_id).config
        options = original.options if request.options is None else request.options
        if request.options is not None:
            check_clone_options(options)
        settings = {**original.settings, "timeout": request.timeout, "load": True}
        config = replace(original, model_id=None, options=options, settings=settings)

        def load() -> ServedModel:
            if self._clones >= self.limits.clones:
                raise RequestError(
                    403, f"this server lets clients add {self.limits.clones} models, and no more"
                )
            new_id = max(self._models) + 1
            try:
                model = ServedModel(config, new_id)
            except UserError as error:
                raise RequestError(400, f"no clone of model {model_id}: {error}") from None
            self._clones += 1
            self._models[new_id] = model
            return model

        return self._in_turn(load)

    def unload(self, model_id: int) -> None:
        """Take a model out of memory, until the next request for it."""
        self._if_loaded(model_id, lambda model: model.unload())

    def to_cpu(self, model_id: int) -> None:
        """Move a model to the CPU."""
        self._if_loaded(model_id, lambda model: model.to_cpu())

    def to_gpu(self, model_id: int) -> None:
        """Move a model to the GPU of its options."""
        if not torch.cuda.is_available() or not self._find(model_id).opt.cuda:
            raise RequestError(409, f"model {model_id} is configured for the CPU, or there is no GPU")
        self._if_loaded(model_id, lambda model: model.to_gpu())

    def _if_loaded(self, model_id: int, work: Callable[[ServedModel], None]) -> None:
        model = self._find(model_id)

        def checked() -> None:
            if not model.loaded:
                raise RequestError(409, f"model {model_id} is not loaded")
            work(model)

        self._in_turn(checked)

    def _find(self, model_id: int) -> ServedModel:
        if model_id not in self._models:
            there = ", ".join(map(str, sorted(self._models)))
            raise RequestError(404, f"there is no model {model_id}; there is {there}")
        return self._models[model_id]

    def _in_turn(self, work: Callable[[], T]) -> T:
        """Do something when all that was asked before is done."""
        try:
            future = self._thread.submit(work)
        except RuntimeError:  # closed
            raise _busy("the server is stopping") from None
        try:
            return future.result(self.limits.wait)
        except concurrent.futures.TimeoutError:
            if future.cancel():
                raise _busy(f"the server is busy: {self.limits.wait:g} seconds were not enough") from None
            return future.result()  # its turn has come
        except concurrent.futures.CancelledError:
            raise _busy("the server is stopping") from None


def _busy(message: str) -> RequestError:
    return RequestError(503, message, {"Retry-After": str(RETRY_AFTER)})


def check_clone_options(options: dict[str, Any]) -> None:
    """Refuse what would let a client at files, devices or too much memory."""
    for name, value in options.items():
        if name not in CLONE_OPTIONS:
            raise RequestError(400, f"'{name[:50]}' is not an option that clients may set")
        if not isinstance(value, str | int | float):
            raise RequestError(400, f"'{name}' is not a string, a number, true or false")
        most = CLONE_OPTIONS[name]
        if most is not None and (type(value) is not int or value > most):
            raise RequestError(400, f"'{name}' is not a whole number up to {most}")
