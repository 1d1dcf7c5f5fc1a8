"""The state a word is emitted from: tanh(U [query; context])."""

import torch
from torch import Tensor, nn


class Emission(nn.Module):
    """tanh(U_q q + U_c c), with U kept as two matrices.

    For a fixed query and many contexts (one for each alignment), or a fixed context and many
    queries, each product is taken once and the sums are cheap; [query; context] is never built.

    Args:
        query_size: D, also the size of the state.
        context_size: M.
    """

    def __init__(self, query_size: int, context_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_size, query_size)
        self.context = nn.Linear(context_size, query_size, bias=False)

    def forward(self, queries: Tensor, contexts: Tensor) -> Tensor:
        """... x D and ... x M (broadcast against each other) -> states ... x D."""
        return torch.tanh(self.query(queries) + self.context(contexts))
