"""Attention compared with gold boxes, for data in which the box of each answer is known."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from onmt_varattn.errors import UserError
from onmt_varattn.latent import Inference
from onmt_varattn.utils.reading import read_json
from onmt_varattn.vqa.data.answers import normalise

KINDS = ("prior", "posterior", "exact")  # distributions over boxes


class Gold(NamedTuple):
    """Kind of a question, and the box of each right answer."""

    kind: str
    boxes: Mapping[str, int]


def read_gold(path: str) -> dict[int, Gold]:
    """Read gold boxes by question id, as in the gold.json of make_scenes.

    The file maps each question id to an object with a "kind" and "boxes", which maps each right answer to
    the index of its box, or null.

    Raises:
        UserError: the file has another format; the message names the question.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not content:
        raise UserError(f"-gold {path}: expected an object with question ids, as make_scenes writes them")
    return {_id(path, key): _gold(f"-gold {path}, question {key}", entry) for key, entry in content.items()}


class BoxScores:
    """Probability of the gold box of the label, averaged over questions by kind.

    Questions without a label, or whose label has no gold box, are not counted.

    Args:
        gold: gold boxes by question id.
        answers: answer vocabulary.
        path: path of the gold file, for messages.
    """

    def __init__(self, gold: Mapping[int, Gold], answers: Sequence[str], path: str) -> None:
        self.gold, self.answers, self.path = gold, answers, path
        self._sums: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, inference: Inference, questions: Sequence[int], labels: Sequence[int]) -> None:
        """Add N questions: N ids, and N labels, negative where there is none."""
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
            sums = self._sums[known.kind]
            sums["questions"] += 1
            for kind, rows in probs.items():
                sums[f"mass {kind}"] += rows[n][box]
                sums[f"hit {kind}"] += rows[n][box] == max(rows[n])

    def means(self) -> dict[str, dict[str, Any]]:
        """Per kind of question: their number and, in percent, the mean probability of the gold box
        ("mass") and how often it is the most probable box ("hit").

        Raises:
            UserError: no question has a gold box.
        """
        if not self._sums:
            raise UserError(f"-gold {self.path}: it has no box for any of the questions scored")
        found: dict[str, dict[str, Any]] = {}
        for kind, sums in sorted(self._sums.items(), reverse=True):
            found[kind] = {"questions": sums["questions"]}
            for name in ("mass", "hit"):
                known = [of for of in KINDS if f"{name} {of}" in sums]
                found[kind][name] = {of: 100 * sums[f"{name} {of}"] / sums["questions"] for of in known}
        return found


def _id(path: str, key: str) -> int:
    if not key.isdecimal():
        raise UserError(f"-gold {path}: {key!r} is not a question id")
    return int(key)


def _gold(place: str, entry: Any) -> Gold:
    boxes = entry.get("boxes") if isinstance(entry, dict) else None
    if not isinstance(boxes, dict) or not isinstance(entry.get("kind"), str):
        raise UserError(f"{place}: expected an object with a text 'kind' and an object 'boxes'")
    for answer, box in boxes.items():
        if box is not None and (type(box) is not int or box < 0):
            raise UserError(f"{place}: the box of {answer!r} must be an integer from 0, or null")
    return Gold(entry["kind"], {normalise(answer): box for answer, box in boxes.items() if box is not None})
