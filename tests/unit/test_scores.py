"""Attention scores against their formulas, one query and one position at a time."""

import math

import pytest
import torch

from onmt_varattn.latent.distributions import Registry
from onmt_varattn.latent.scores import SCORES

pytestmark = pytest.mark.torch_only

N, Q, S, D, M, A = 2, 3, 4, 5, 6, 7


def formula(name, score, q, x):
    if name == "mlp":
        return score.weight.weight[0] @ torch.tanh(
            score.query.weight @ q + score.query.bias + score.memory.weight @ x
        )
    if name == "general":
        return q @ score.memory.weight @ x
    if name == "dot":
        return q @ x
    return (score.query.weight @ q) @ (score.memory.weight @ x) / math.sqrt(A)


@pytest.mark.parametrize("name", list(SCORES))
def test_score_is_its_formula(name):
    torch.manual_seed(0)
    memory_size = D if name == "dot" else M
    score = SCORES[name](D, memory_size, A).double()
    queries, memory = torch.randn(N, Q, D).double(), torch.randn(N, S, memory_size).double()
    found = score(queries, score.keys(memory))
    assert found.shape == (N, Q, S)
    for n in range(N):
        for q in range(Q):
            for s in range(S):
                right = formula(name, score, queries[n, q], memory[n, s])
                assert found[n, q, s].item() == pytest.approx(right.item(), abs=1e-12)


def test_the_four_scores_are_there():
    assert set(SCORES) == {"mlp", "general", "dot", "scaled_dot"}


def test_dot_refuses_unequal_sizes():
    with pytest.raises(ValueError, match="5 and 6"):
        SCORES["dot"](5, 6, 7)


def test_registry_refuses_a_name_twice_and_lists_what_it_has():
    registry: Registry[int] = Registry("thing")
    registry.register("one")(1)
    with pytest.raises(ValueError, match="thing 'one' is registered twice"):
        registry.register("one")(2)
    with pytest.raises(KeyError, match="no thing 'two'; there are: one"):
        registry["two"]
