"""Out of memory: a share is split once, what still does not fit is left out, and all is said."""

from types import SimpleNamespace

import pytest
import torch

from onmt_varattn.nmt.data.batches import Share, lines_of
from onmt_varattn.training.memory import accumulate, is_out_of_memory


def share(*lines):
    examples = [SimpleNamespace(corpus="train", line=line, words=line) for line in lines]
    return Share(examples, examples, dataset=None)


def describe(part):
    return f"{len(part)} sentences (lines: {lines_of(part.examples)})"


class Gradient:
    """Adds up line numbers; there is no room for more than `most` of them, nor for some at all."""

    def __init__(self, most, never=()):
        self.most, self.never, self.total, self.starts = most, never, 0, 0

    def start(self):
        self.total, self.starts = 0, self.starts + 1

    def backward(self, part):
        for example in part.examples:
            self.total += example.line  # part of it is done before it breaks off
            if example.line in self.never:
                raise torch.OutOfMemoryError("CUDA out of memory.")
        if len(part.examples) > self.most:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 8"
            )
        return [example.line for example in part.examples]


def test_what_fits_is_done_at_once():
    gradient = Gradient(most=9)
    done, left_out = accumulate([share(1, 2), share(3)], gradient.start, gradient.backward, describe)
    assert (done, left_out, gradient.total, gradient.starts) == ([[1, 2], [3]], [], 6, 1)


def test_a_share_is_halved_and_nothing_counts_twice(caplog):
    gradient = Gradient(most=2)
    done, left_out = accumulate([share(9), share(1, 2, 3, 4)], gradient.start, gradient.backward, describe)
    assert (done, left_out) == ([[9], [1, 3], [2, 4]], [])
    assert gradient.total == 9 + 1 + 2 + 3 + 4
    assert "Out of memory with 4 sentences (lines: train 1, 2, 3, 4): tried again in halves." in caplog.text


def test_a_half_that_does_not_fit_is_left_out_and_named(caplog):
    gradient = Gradient(most=9, never=[2])
    done, left_out = accumulate([share(1, 2, 3, 4)], gradient.start, gradient.backward, describe)
    assert done == [[1, 3]]
    assert gradient.total == 4
    assert [[example.line for example in part.examples] for part in left_out] == [[2, 4]]
    assert "(lines: train 2, 4): left out." in caplog.text


def test_a_single_sentence_cannot_be_split(caplog):
    gradient = Gradient(most=9, never=[1])
    done, left_out = accumulate([share(1)], gradient.start, gradient.backward, describe)
    assert done == []
    assert len(left_out) == 1
    assert gradient.total == 0
    assert "tried again" not in caplog.text


def test_an_empty_share_adds_nothing():
    assert accumulate([share()], lambda: None, lambda part: 1, describe) == ([], [])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_which_errors_are_about_memory(error, expected):
    assert is_out_of_memory(error) is expected


def test_torch_says_so_in_words_that_are_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_other_errors_go_through():
    def broken(part):
        raise RuntimeError("shapes")

    with pytest.raises(RuntimeError, match="shapes"):
        accumulate([share(1, 2)], lambda: None, broken, describe)
