"""One piece of memory for all logits: it is used again, and nobody's logits are lost unnoticed."""

import pytest
import torch

from onmt_varattn.latent.likelihood import OutputLayer, Workspace

pytestmark = pytest.mark.torch_only

V, D = 1030, 4  # rows are padded to 1,040


def output_layer(workspace=None, words=V):
    generator = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(shape, generator=generator) for shape in ((words, D), (words,)))
    return OutputLayer(weight, bias, workspace=workspace)


def test_batches_share_the_memory_of_the_largest():
    workspace = Workspace()
    large = output_layer(workspace).logits(torch.randn(9, D))
    small = output_layer(workspace).logits(torch.randn(5, D))
    assert small.data_ptr() == large.data_ptr()
    assert output_layer().logits(torch.randn(5, D)).data_ptr() != large.data_ptr()
    larger = output_layer(workspace).logits(torch.randn(10, D))
    assert larger.shape == (10, 1040)


def test_another_type_gets_other_memory():
    workspace = Workspace()
    workspace.rows(3, 4, torch.empty(0), torch.float32).fill_(7)
    assert workspace.rows(3, 4, torch.empty(0), torch.float64).dtype == torch.float64


@pytest.mark.parametrize(("words", "stride"), [(17, 17), (1023, 1023), (1024, 1024), (1030, 1040)])
def test_rows_are_aligned_where_it_costs_little(words, stride):
    made = output_layer(words=words)
    states = torch.randn(3, D)
    logits = made.logits(states)
    assert logits.shape == (3, stride)
    torch.testing.assert_close(logits[:, :words], states @ made.weight.t() + made.bias)
    assert (logits[:, words:] == float("-inf")).all()


def test_overwritten_logits_are_noticed():
    made = output_layer()
    gold = torch.tensor([3, 4])
    first = made.gold(torch.randn(2, D, requires_grad=True), gold)
    made.gold(torch.randn(2, D, requires_grad=True), gold).log_likelihood.sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.log_likelihood.sum().backward()
