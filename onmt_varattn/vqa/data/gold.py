"""Where a model looks against where it should, for data in which somebody knows the box of an answer."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from onmt_varattn.errors import UserError
from onmt_varattn.latent import Inference
from onmt_varattn.utils.files import read_bytes
from onmt_varattn.vqa.data.answers import normalise

KINDS = ("prior", "posterior", "exact")  # of distributions over boxes


class Gold(NamedTuple):
    """What is known of a question: a name for what it needs, and the boxes of its right answers."""

    kind: str
    boxes: Mapping[str, int]


def read_gold(path: str) -> dict[int, Gold]:
    """What a file such as the gold.json of tools/make_scenes.py says, by question id.

    It has for each id an object with a "kind" and, in "boxes", for each right answer the index of the box
    that it is about, or null.

    Raises:
        UserError: it is no such file; the question is named.
    """
    try:
        content = json.loads(read_bytes(path))
    except ValueError as error:
        raise UserError(f"-gold {path}: not JSON: {error}") from None
    if not isinstance(content, dict) or not content:
        raise UserError(f"-gold {path}: expected an object with question ids, as tools/make_scenes.py writes")
    return {_id(path, key): _gold(f"-gold {path}, question {key}", entry) for key, entry in content.items()}


class BoxScores:
    """How much of a distribution is on the box that the label is about, over questions by kind.

    Questions without a label, or whose label is no right answer or about no box, do not count.

    Args:
        gold: by question id.
        answers: the vocabulary.
        path: of the file, for messages.
    """

    def __init__(self, gold: Mapping[int, Gold], answers: Sequence[str], path: str) -> None:
        self.gold, self.answers, self.path = gold, answers, path
        self._sums: dict[str, dict[str, float]] = {}

    def add(self, inference: Inference, questions: Sequence[int], labels: Sequence[int]) -> None:
        """Count some questions: N ids, and N labels, below 0 where there is none."""
        padding = inference.positions.prior.isinf()  # N x S
        counts = (padding.size(1) - padding.sum(1)).tolist()
        found = {kind: inference.distribution(kind) for kind in KINDS}
        probs = {kind: q.probs.tolist() for kind, q in found.items() if q is not None}
        for n, (question, label) in enumerate(zip(questions, labels, strict=True)):
            known = self.gold.get(question)
            box = known.boxes.get(self.answers[label]) if known and label >= 0 else None
            if known is None or box is None:
                continue
            if box >= counts[n]:
                raise UserError(
                    f"-gold {self.path}, question {question}: there is no box {box}; its image has "
                    f"{counts[n]}"
                )
            sums = self._sums.setdefault(known.kind, {"questions": 0})
            sums["questions"] += 1
            for kind, rows in probs.items():
                own = rows[n]
                for name, value in (("mass", own[box]), ("hit", own[box] == max(own))):
                    sums[f"{name} {kind}"] = sums.get(f"{name} {kind}", 0.0) + value

    def means(self) -> dict[str, dict[str, Any]]:
        """By kind of question: how many there were; in percent, the probability of the right box, and how
        often it is the most probable one.

        Raises:
            UserError: nothing could be compared.
        """
        if not self._sums:
            raise UserError(f"-gold {self.path}: it knows a box for none of the questions scored")
        return {
            kind: {
                "questions": int(sums["questions"]),
                **{
                    name: {
                        of: 100 * sums[f"{name} {of}"] / sums["questions"]
                        for of in KINDS
                        if f"{name} {of}" in sums
                    }
                    for name in ("mass", "hit")
                },
            }
            for kind, sums in sorted(self._sums.items(), reverse=True)
        }


def _id(path: str, key: str) -> int:
    if not key.isdecimal():
        raise UserError(f"-gold {path}: {key!r} is no question id")
    return int(key)


def _gold(place: str, entry: Any) -> Gold:
    boxes = entry.get("boxes") if isinstance(entry, dict) else None
    if not isinstance(boxes, dict) or not isinstance(entry.get("kind"), str):
        raise UserError(f"{place}: expected an object with a text 'kind' and an object 'boxes'")
    for answer, box in boxes.items():
        if box is not None and (type(box) is not int or box < 0):
            raise UserError(f"{place}: the box of {answer!r} must be a whole number from 0, or null")
    return Gold(entry["kind"], {normalise(answer): box for answer, box in boxes.items() if box is not None})
