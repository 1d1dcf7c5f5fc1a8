"""The served models: OpenNMT-py's `ServerModel` with checks; clones share the weights of their original."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from onmt.constants import DefaultTokens
from onmt.translate.translation_server import ServerModel
from torch import nn

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.parsers import translate_options
from onmt_varattn.nmt.search.loading import Loaded
from onmt_varattn.nmt.serving.config import ModelConfig
from onmt_varattn.nmt.serving.options import OTHER_NAMES, Options, read_options, with_options
from onmt_varattn.nmt.serving.requests import Clone, Limits, RequestError, Translation, check_cost
from onmt_varattn.nmt.serving.turns import Turns


class ServedModel(ServerModel):
    """OpenNMT-py's server model with strict options; a failed request does not change it.

    Args:
        config: entry of the configuration.
        model_id: id that clients use.
        turns: queue whose time limits are checked before every step of a search.
        original: for a clone: the model whose weights it shares.
        options: for a clone: options of the client.
    """

    def __init__(
        self,
        config: ModelConfig,
        model_id: int,
        turns: Turns,
        original: "ServedModel | None" = None,
        options: Options | None = None,
    ) -> None:
        self.config, self.turns = config, turns
        self._original, self._client_options = original, options or {}
        self._loaded: Loaded | None = None
        self._clones: list[ServedModel] = []
        super().__init__({**config.options, "models": config.paths}, model_id, **config.settings)
        if original is not None:
            original._clones.append(self)

    def parse_opt(self, opt: dict[str, Any]) -> Any:
        """The options as a namespace: those of the configuration, or for a clone those of its original."""
        if self._original is not None:
            return with_options(self._original.opt, self._client_options)
        options = {name: value for name, value in opt.items() if name != "models"}
        for name in ("model", "config", "save_config", "src", "tgt", "output", "src_feats", "dump_attention"):
            if name in options:
                raise UserError(f"'{name}' is an option of onmt_translate only; leave it out")
        if options.get("tgt_prefix"):
            options["tgt"] = "given by the client"
        whole_request = options.get("batch_size") == 0  # in OpenNMT-py: all sentences in one batch
        if whole_request:
            del options["batch_size"]
        parsed = translate_options(opt["models"], options)
        if whole_request:
            parsed.batch_size = 0
        parsed.cuda = parsed.gpu > -1
        return parsed

    def load(self, preload: bool = False) -> None:
        """Load the model; if that fails, the next request tries again."""
        start = time.perf_counter()
        if self.ct2_model is not None:
            try:
                super().load(preload)
            finally:
                self.loading_lock.set()
        else:
            self.logger.info("Loading model %d", self.model_id)
            if self._original is not None:
                self._loaded = self._original.loaded_weights()
            elif self._loaded is None:
                self._loaded = self._read()
            loaded = self._loaded
            self._choose_mixture(loaded.model)  # or refuse the options
            self.translator = loaded.translator(self.opt)
            self.reset_unload_timer()
        self.load_time = time.perf_counter() - start

    def load_if_needed(self) -> None:
        """Load the model, unless it is loaded."""
        if not self.loaded:
            self.load()

    def loaded_weights(self) -> Loaded:
        """The weights, which clones share; loads the model if needed."""
        if self._loaded is None:
            self.load()
        assert self._loaded is not None
        return self._loaded

    def _read(self) -> Loaded:
        """Read the checkpoint, with a check of the time limit before every step of a search."""
        loaded, check = Loaded.from_opt(self.opt), self.turns.check
        for part in (loaded.model.encoder, loaded.model.decoder):
            if isinstance(part, nn.Module):  # a language model has no encoder
                part.register_forward_pre_hook(lambda *_: check())
        return loaded

    def run(self, inputs: list[dict[str, Any]]) -> Any:
        """Translate; a search that exceeds the time limit stops between two steps.

        Raises:
            OutOfTimeError: the time limit is exceeded. The model stays usable.
        """
        self.load_if_needed()
        if self.ct2_model is None:
            self._choose_mixture(self.translator.model)  # a clone may have changed it
        try:
            return super().run(inputs)
        except BaseException as error:
            if not isinstance(error, Exception):  # OpenNMT-py unlocks after an `Exception` only
                self.running_lock.release()
            self.reset_unload_timer()
            raise

    def unload(self) -> None:
        """Unload the model, and its clones, which have the same weights."""
        if self.loaded:
            super().unload()
        self._loaded = None
        for clone in self._clones:
            clone.unload()

    def do_timeout(self) -> None:
        """Queue OpenNMT-py's method: a clone may be using the same weights."""
        self.turns.do_later(lambda: super(ServedModel, self).do_timeout() if self.loaded else None)

    @property
    def heads(self) -> int:
        """Number of heads of a transformer encoder; 0 for other models, and before loading."""
        opt = None if self._loaded is None else self._loaded.model_opt
        return opt.heads if opt is not None and opt.encoder_type == "transformer" else 0

    def _choose_mixture(self, model: nn.Module) -> None:
        from onmt_varattn.nmt.model.building import choose_mixture

        choose_mixture(model, self.opt)

    def sentence(self, item: dict[str, Any]) -> dict[str, Any]:
        """A sentence of a client, without contents that make OpenNMT-py fail.

        A blank sentence becomes empty, or its spaces would be returned twice. A reference that is not used as
        a prefix is removed: it would be scored without need, and an empty one cannot be.
        """
        src = item["src"] if item["src"].strip() else ""
        features = item.get("src_feats", {}) if src else {}
        prefix = item.get("ref") if self.opt.tgt_prefix else None
        return {**item, "src": src, "src_feats": features, "ref": prefix}

    def maybe_preprocess(self, sequence: dict[str, Any]) -> Any:
        """Check a sentence against the model, then call OpenNMT-py's method; called once per sentence."""
        if self.opt.tgt_prefix and not sequence.get("ref"):
            raise RequestError(
                400, f"model {self.model_id} continues a prefix (-tgt_prefix): each sentence needs a 'ref'"
            )
        known = [name for name, _ in self._source_fields()[1:]]
        given = sequence.get("src_feats", {})
        words = len(sequence["src"].split())
        if words and sorted(given) != sorted(known):
            names = ", ".join(known) or "none"
            raise RequestError(400, f"'src_feats' are not those of model {self.model_id}, which has {names}")
        for name, values in given.items():
            if words != len(values.split()):
                raise RequestError(400, f"'src_feats {name}' needs as many values as 'src' has words")
        return super().maybe_preprocess(sequence)

    def maybe_detokenize_with_align(self, sequence: str, src: str, side: str = "tgt") -> Any:
        """As OpenNMT-py's method, which fails for translations that contain the separator."""
        if not self.opt.report_align:
            return super().maybe_detokenize_with_align(sequence, src, side)
        text, _, links = sequence.rpartition(DefaultTokens.ALIGNMENT_SEPARATOR)
        return self.maybe_detokenize(text, side), links and self.maybe_convert_align(src, text, links)

    def _source_fields(self) -> Sequence[Any]:
        fields = getattr(self.translator, "fields", None)  # CTranslate2's translator has none
        return list(fields["src"]) if fields else []


class Models:
    """All models by id.

    One thread processes all requests in the order of their arrival: a model handles one translation at a
    time, and torch reserves memory per thread.

    Args:
        limits: limits on requests.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.turns = Turns(limits)
        self._models: dict[int, ServedModel] = {}
        self._clones = 0

    def add(self, config: ModelConfig) -> ServedModel:
        """Set up a model, and load it if its configuration has "load". Not for requests.

        Raises:
            UserError: the options or the checkpoint are wrong.
        """
        number = next(n for n in range(len(self._models) + 1) if n not in self._models)
        model_id = number if config.model_id is None else config.model_id
        try:
            model = self.turns.do_unlimited(lambda: ServedModel(config, model_id, self.turns))
        except UserError as error:
            raise UserError(f"model {model_id}: {error}") from None
        except Exception as error:  # from a tokeniser, or a function named in the configuration
            reason = str(error).strip().split("\n")[0]
            raise UserError(f"model {model_id}: {type(error).__name__}: {reason}") from error
        self._models[model_id] = model
        return model

    def close(self) -> None:
        """Stop: the current translation has a few seconds to end, and no other starts."""
        self.turns.close()
        for model in self._models.values():
            model.stop_unload_timer()

    def listing(self) -> list[dict[str, Any]]:
        """OpenNMT-py's description of every model."""
        return [model.to_dict() for model in list(self._models.values())]

    def translate(self, request: Translation) -> list[list[dict[str, Any]]]:
        """Translate; returns OpenNMT-py's response, n_best x sentences."""
        model = self._find(request.model_id)
        check_cost(request, model.opt, self.limits.cost, model.heads)
        sentences = [model.sentence(item) for item in request.sentences]

        def run() -> Any:
            model.load_if_needed()
            check_cost(request, model.opt, self.limits.cost, model.heads)  # now with the number of heads
            return model.run(sentences)

        texts, scores, n_best, _, links = self.turns.do(run)
        answer: list[list[dict[str, Any]]] = [[] for _ in range(n_best)]
        for i, (text, score, align) in enumerate(zip(texts, scores, links, strict=True)):
            sentence = request.sentences[i // n_best]
            number = score if math.isfinite(score) else None  # JSON has no infinity
            found = {"src": sentence["src"], "tgt": text, "n_best": n_best, "pred_score": number}
            if align and align[0] is not None:
                found["align"] = align
            answer[i % n_best].append(found)
        return answer

    def clone(self, model_id: int, request: Clone) -> ServedModel:
        """Clone a model, with the options of a client in addition to those of the configuration.

        The clone shares the weights and takes almost no memory.
        """
        original = self._find(model_id)
        options = read_options(request.options)
        if original.ct2_model is not None:
            raise RequestError(409, f"model {model_id} is a CTranslate2 model, which cannot be cloned")
        kept = {
            name: value
            for name, value in original.config.options.items()
            if OTHER_NAMES.get(name, name) not in options
        }
        settings = {**original.config.settings, "timeout": request.timeout, "load": True}
        config = replace(original.config, model_id=None, options={**kept, **options}, settings=settings)

        def load() -> ServedModel:
            if self._clones >= self.limits.clones:
                raise RequestError(
                    403, f"clients may add {self.limits.clones} models to this server (-max_clones)"
                )
            new_id = max(self._models) + 1
            try:
                model = ServedModel(config, new_id, self.turns, original, options)
            except UserError as error:
                raise RequestError(400, f"model {model_id} cannot be cloned: {error}") from None
            self._clones += 1
            self._models[new_id] = model
            return model

        return self.turns.do(load)

    def unload(self, model_id: int) -> None:
        """Unload a model and its clones until the next request for them."""
        self._if_loaded(model_id, lambda model: model.unload())

    def to_cpu(self, model_id: int) -> None:
        """Move a model to the CPU."""
        self._if_loaded(model_id, lambda model: model.to_cpu())

    def to_gpu(self, model_id: int) -> None:
        """Move a model to its GPU."""
        if not torch.cuda.is_available() or not self._find(model_id).opt.cuda:
            raise RequestError(409, f"model {model_id} is configured for the CPU, or there is no GPU")
        self._if_loaded(model_id, lambda model: model.to_gpu())

    def _if_loaded(self, model_id: int, work: Callable[[ServedModel], None]) -> None:
        model = self._find(model_id)

        def checked() -> None:
            if not model.loaded:
                raise RequestError(409, f"model {model_id} is not loaded")
            work(model)

        self.turns.do(checked)

    def _find(self, model_id: int) -> ServedModel:
        if model_id not in self._models:
            there = ", ".join(map(str, sorted(self._models)))
            raise RequestError(404, f"there is no model {model_id}; the models are {there}")
        return self._models[model_id]
