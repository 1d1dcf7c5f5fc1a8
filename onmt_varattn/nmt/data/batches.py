"""Training data: the same batches in every process, from any position.

OpenNMT's way stays: sentence pairs come from weighted corpora in turns, a bucket of them is
sorted by length, cut into batches, and the batches are shuffled. What is added is a position to
save and to start from, and a share of each batch for each process.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from onmt.inputters import OrderedIterator
from onmt.inputters.corpus import DatasetAdapter, build_corpora_iters
from onmt.inputters.dynamic_iterator import DynamicDatasetIter
from onmt.inputters.inputter import IterOnDevice
from onmt.utils.logging import logger
from torchtext.data import Batch, Dataset, Example

from onmt_varattn.errors import UserError
from onmt_varattn.training.checkpoints.streams import data_stream, own_stream
from onmt_varattn.training.checkpoints.trees import BrokenError, is_count, like
from onmt_varattn.training.processes import World
from onmt_varattn.utils.files import fingerprint


class Corpora:
    """Sentence pairs of several corpora in turns, as often as their weights say.

    Args:
        corpora: each to be iterated again and again, by name.
        weights: pairs to take from each in a turn.
        single_pass: leave a corpus out once it is read; otherwise start it anew.
    """

    def __init__(
        self, corpora: dict[str, Iterable[Any]], weights: dict[str, int], single_pass: bool = False
    ) -> None:
        self.corpora, self.single_pass = corpora, single_pass
        self.turns = [name for name, weight in weights.items() for _ in range(weight)]
        self.turn = 0
        self.passes = dict.fromkeys(corpora, 1)
        self.read = dict.fromkeys(corpora, 0)  # in the present pass
        self._iterators = {name: iter(corpus) for name, corpus in corpora.items()}

    def take(self, count: int) -> list[Any]:
        """The next pairs; fewer only at the end of a single pass."""
        return list(islice(self._pairs(), count))

    def _pairs(self) -> Iterator[Any]:
        while self.turns:
            name = self.turns[self.turn % len(self.turns)]
            pair = next(self._iterators[name], None)
            if pair is None and not self.read[name]:
                raise UserError(f"corpus {name} in -data: there is no line with words on both sides")
            if pair is None and self.single_pass:
                self.turns = [other for other in self.turns if other != name]
                continue
            if pair is None:
                self.passes[name] += 1
                self._iterators[name], self.read[name] = iter(self.corpora[name]), 0
                continue
            self.turn += 1
            self.read[name] += 1
            yield pair

    def state_dict(self) -> dict[str, Any]:
        """Where the next pair comes from."""
        return {
            "turns": self.turns,
            "turn": self.turn,
            "passes": dict(self.passes),
            "read": dict(self.read),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; what was read is read over."""
        state = like(state, {**self.state_dict(), "turns": []}, "place in the corpora")
        counts = [state["turn"], *state["passes"].values(), *state["read"].values()]
        over = not state["turns"] and not self.single_pass
        if over or not self.corpora.keys() >= set(state["turns"]) or not all(map(is_count, counts)):
            raise BrokenError("its place in the corpora is damaged")
        self.turns, self.turn = list(state["turns"]), state["turn"]
        self.passes, self.read = dict(state["passes"]), dict(state["read"])
        for name, corpus in self.corpora.items():
            self._iterators[name] = islice(iter(corpus), self.read[name], None)


class _Adapter(DatasetAdapter):
    """OpenNMT's, whose examples know where they come from."""

    def _to_examples(self, bucket: Iterable[Any], is_train: bool = False) -> list[Example]:
        examples = []
        for item in bucket:
            for example in super()._to_examples([item], is_train):
                example.corpus, example.line = item[2], item[0]["indices"] + 1
                examples.append(example)
        return examples


@dataclass(frozen=True)
class Share:
    """The share of a batch that one process computes.

    Attributes:
        examples: examples of this process.
        whole: examples of all processes.
        dataset: dataset whose fields turn examples into tensors.
        device_id: OpenNMT's number of the device.
        normalization: what the loss is divided by: "tokens" or "sents".
    """

    examples: list[Example]
    whole: list[Example]
    dataset: Dataset
    device_id: int = -1
    normalization: str = "sents"

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def whole_size(self) -> int:
        """Number of sentence pairs of all processes."""
        return len(self.whole)

    @property
    def amount(self) -> int:
        """Contribution to the denominator of the loss."""
        return amount(self.examples, self.normalization)

    @property
    def whole_amount(self) -> int:
        """Contribution of all processes to the denominator of the loss."""
        return amount(self.whole, self.normalization)

    def batch(self) -> Batch:
        """This process's examples as tensors."""
        batch = Batch(self.examples, self.dataset, "cpu")
        IterOnDevice.batch_to_device(batch, self.device_id)
        return batch

    def halves(self) -> list["Share"]:
        """Two shares with half the examples each."""
        parts = (self.examples[::2], self.examples[1::2])
        return [replace(self, examples=part) for part in parts]

    def of_ranks(self, ranks: Iterable[int], size: int) -> list[Example]:
        """The examples of some processes."""
        return [example for rank in ranks for example in self.whole[rank::size]]


def amount(examples: Iterable[Example], method: str) -> int:
    """What a loss over examples is divided by: target words (with ends of sentences), or sentences."""
    return sum(example.words if method == "tokens" else 1 for example in examples)


def lines_of(examples: Iterable[Example]) -> str:
    """Where examples come from, for people: "train 12, 90, 117"."""
    by_corpus: dict[str, list[int]] = {}
    for example in examples:
        by_corpus.setdefault(example.corpus, []).append(example.line)
    return "; ".join(f"{name} {', '.join(map(str, sorted(lines)))}" for name, lines in by_corpus.items())


class TrainingData:
    """Shares of batches, for ever (or for a single pass).

    All processes read the same pairs and cut them into the same batches, `world.size` times as
    large as `-batch_size`; each takes every `world.size`-th sentence of the sorted batch, so that
    shares have nearly the same lengths.

    Args:
        reader: OpenNMT's iterator, whose settings are used.
        world: the processes to share with.
        device_id: OpenNMT's number of the device.
        single_pass: end after all corpora are read once.
        normalization: what the loss is divided by: "tokens" or "sents".
    """

    def __init__(
        self,
        reader: DynamicDatasetIter,
        world: World,
        device_id: int = -1,
        single_pass: bool = False,
        normalization: str = "sents",
    ) -> None:
        self.reader, self.world, self.device_id = reader, world, device_id
        self.normalization = normalization
        # Blank lines are counted and reported before training, and not again in every pass.
        level = "silent" if reader.skip_empty_level == "warning" else reader.skip_empty_level
        iterables = build_corpora_iters(
            reader.corpora, reader.transforms, reader.corpora_info, skip_empty_level=level
        )
        weights = {name: int(reader.corpora_info[name]["weight"]) for name in iterables}
        self.corpora = Corpora(iterables, weights, single_pass)
        self.stream = data_stream()
        self._adapter = _Adapter(reader.fields, is_train=True)
        self._target = reader.fields["tgt"].base_field
        # Of a share, for the hardware's sake; where there is nothing to gain, batches are cut as for one.
        multiple = reader.batch_size_multiple
        self._multiple = multiple * world.size if multiple > 1 else 1
        self._settings = self._find_settings()
        self._bucket = self._snapshot()
        self._done = 0  # batches of the present bucket

    def __iter__(self) -> Iterator[Share]:
        empty_since = None
        while True:
            self._bucket = self._snapshot()
            skip, self._done = self._done, 0
            before = dict(self.corpora.passes)
            with own_stream(self.stream):
                pairs = self.corpora.take(self.reader.bucket_size)
                if not pairs:
                    return
                dataset = self._adapter(pairs)
                batches = self._batches(dataset)
            for name, passes in self.corpora.passes.items():
                if passes > before[name]:
                    logger.info("Reading corpus %s ahead: pass %d", name, passes)
            if not batches:
                empty_since = empty_since or dict(self.corpora.passes)
                self._check_progress(empty_since)
            else:
                empty_since = None
            for batch in batches:
                self._done += 1
                if self._done > skip:
                    yield self._share(batch, dataset)
            self._done = 0

    def _batches(self, dataset: Dataset) -> list[list[Example]]:
        reader, size = self.reader, self.world.size
        ordered = OrderedIterator(
            dataset,
            reader.batch_size * size,
            pool_factor=reader.pool_factor,
            batch_size_fn=reader.batch_size_fn,
            batch_size_multiple=self._multiple,
            device=reader.device,
            train=True,
            sort=False,
            sort_within_batch=True,
            sort_key=reader.sort_key,
            repeat=False,
        )
        ordered.init_epoch()
        return [sorted(batch, key=reader.sort_key, reverse=True) for batch in ordered.batches]

    def _share(self, examples: list[Example], dataset: Dataset) -> Share:
        for example in examples:
            words = example.tgt[0]
            example.words = len(words) + 1 - words.count(self._target.pad_token)
        own = examples[self.world.rank :: self.world.size]
        return Share(own, examples, dataset, self.device_id, self.normalization)

    def _check_progress(self, since: dict[str, int]) -> None:
        """End a search for a usable pair that has been through all corpora."""
        if all(self.corpora.passes[name] > passes + 1 for name, passes in since.items()):
            raise UserError(
                "-data: the transforms leave no sentence pair to train on; look at their statistics above "
                "(-src_seq_length and -tgt_seq_length of filtertoolong, for example)"
            )

    def _snapshot(self) -> dict[str, Any]:
        return {"corpora": self.corpora.state_dict(), "stream": dict(self.stream)}

    def _find_settings(self) -> dict[str, Any]:
        """What a position depends on."""
        reader = self.reader
        files = {
            name: [
                [path, os.path.getsize(path), fingerprint(path)]
                for path in (corpus.src, corpus.tgt, corpus.align, *(corpus.src_feats or {}).values())
                if path
            ]
            for name, corpus in reader.corpora.items()
        }
        return {
            "files": files,
            "batch": [reader.batch_size * self.world.size, reader.batch_size_fn is not None],
            "bucket": [reader.bucket_size, reader.pool_factor, self._multiple],
        }

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch comes from: a bucket, and the batches of it that are done."""
        return {**self._bucket, "done": self._done, "settings": self._settings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the next batch; if batches are cut otherwise now, with the first of its bucket."""
        self.stream = dict(state["stream"])
        with own_stream(self.stream):
            pass  # it is a state of our generators
        if not is_count(state["done"]):
            raise BrokenError("its place in the data is damaged")
        before, now = state["settings"], self._settings
        if not _same_files(before["files"], now["files"]):
            logger.warning("The training files are not those of the checkpoint: its place in them is kept.")
        if self.corpora.corpora.keys() == state["corpora"]["read"].keys():
            self.corpora.load_state_dict(state["corpora"])
        else:
            logger.warning("Other corpora than in the checkpoint: they are read from their beginning.")
        if (before["batch"], before["bucket"]) == (now["batch"], now["bucket"]):
            self._done = state["done"]
        else:
            logger.warning(
                "Batches are cut otherwise than in the checkpoint: its last bucket of pairs begins anew."
            )
        self._bucket = self._snapshot()


def _same_files(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether corpora are the same, as far as a checkpoint knows them.

    Those of version 0.1 know the source and target files by their paths and sizes only.
    """
    known = {name: [len(file) for file in files] for name, files in before.items()}
    return before == {
        name: [file[:length] for file, length in zip(files, known.get(name, []), strict=False)]
        for name, files in now.items()
    }


class ValidationData:
    """Every `world.size`-th validation batch, on the device."""

    def __init__(self, batches: DynamicDatasetIter, world: World, device_id: int = -1) -> None:
        self.batches, self.world, self.device_id = batches, world, device_id

    def __iter__(self) -> Iterator[Batch]:
        for batch in islice(self.batches, self.world.rank, None, self.world.size):
            IterOnDevice.batch_to_device(batch, self.device_id)
            yield batch
