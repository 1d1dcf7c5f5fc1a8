"""A toy translator with latent attention: python examples/latent_attention.py [objective].

A source is a string of letters; its translation is the string, rotated by a random number, in a code.
"""

import sys

import torch
from torch import Tensor, nn

from onmt_varattn.latent import LatentAttention

LETTERS, LONGEST = 12, 7
CODE = torch.randperm(LETTERS, generator=torch.Generator().manual_seed(1))


def batch(size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sources, their padding, translations and gold alignments: size x LONGEST each."""
    lengths = torch.randint(4, LONGEST + 1, (size, 1))
    source, padding = torch.rand(size, LETTERS).argsort(1)[:, :LONGEST], torch.arange(LONGEST) >= lengths
    alignment = ((torch.rand(size, 1) * lengths).long() + torch.arange(LONGEST)) % lengths
    return source, padding, CODE[source.gather(1, alignment)].masked_fill(padding, -100), alignment


class Translator(nn.Module):
    """Encoder, decoder and inference network with latent attention."""

    def __init__(self, objective: str, size: int = 64) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(LETTERS, size), nn.Embedding(LETTERS, size)
        self.encoder = nn.LSTM(size, size // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTM(size, size, batch_first=True)
        self.reader = nn.LSTM(size, size // 2, batch_first=True, bidirectional=True)
        self.attention = LatentAttention(size, size, LETTERS, objective=objective, warm_up_steps="auto")

    def forward(self, source: Tensor, padding: Tensor, gold: Tensor) -> dict[str, Tensor]:
        """The arguments of `attention` for N sources."""
        words = self.target(gold.clamp(min=0))  # N x T x size
        memory, _ = self.encoder(self.source(source))  # N x S x size
        queries, _ = self.decoder(nn.functional.pad(words[:, :-1], (0, 0, 1, 0)))  # of the words before
        posterior = self.reader(words)[0] @ memory.transpose(1, 2)  # of all words, N x T x S
        return dict(queries=queries, memory=memory, gold=gold, memory_padding=padding, posterior=posterior)


torch.manual_seed(1)
model = Translator(*sys.argv[1:] or ["variational"])
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
for step in range(1, 801):
    out = model.attention(**model(*batch(64)[:3]))
    optimizer.zero_grad()
    out.loss.backward()
    optimizer.step()
    if step % 200 == 0:
        print(f"step {step}:", ", ".join(f"{name} {value:.3f}" for name, value in out.report.items()))
source, padding, gold, alignment = batch(1000)
found = model.attention.infer(**model(source, padding, gold))
q = found.posterior if model.attention.objective.has_posterior else found.exact_posterior
right = (found.positions.spread(q.argmax()) == alignment)[~padding].float().mean()
perplexity = found.mixture(model.attention.objective.mixture()).log_marginal.mean().neg().exp()
print(f"PPL {perplexity:.3f}, KL(q, p) {q.kl(found.prior).mean():.3f}, argmax of q right {right:.1%}")
