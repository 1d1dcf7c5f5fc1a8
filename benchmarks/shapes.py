"""What is measured: shapes of models and batches, and systems."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Sizes of a model and of its batches."""

    words: int
    batch: int
    source: int
    target: int
    layers: int
    embeddings: int
    memory: int
    decoder: int
    attention: int
    steps: int  # timed steps a round

    def options(self, equal_sizes: bool) -> str:
        """Options of onmt_train; stock OpenNMT-py needs encoder and decoder of one size."""
        memory = self.decoder if equal_sizes else self.memory
        return (
            f"-encoder_type brnn -layers {self.layers} -word_vec_size {self.embeddings} "
            f"-enc_rnn_size {memory} -dec_rnn_size {self.decoder} -global_attention mlp -input_feed 1 "
            "-dropout 0.3 -optim adam -learning_rate 0.0003 -max_grad_norm 5"
        )


PAPER = {"words": 14_000, "layers": 2, "embeddings": 512, "memory": 1024, "decoder": 768, "attention": 512}

SHAPES = {
    "small": Shape(
        words=10_000, batch=32, source=14, target=15, layers=1,
        embeddings=256, memory=256, decoder=256, attention=256, steps=30,
    ),
    "paper, batch 6": Shape(batch=6, source=25, target=25, steps=12, **PAPER),
    "paper, batch 32": Shape(batch=32, source=25, target=25, steps=5, **PAPER),
}  # fmt: skip

# Options that make a system; "stock" runs in a process that never imports us.
SYSTEMS = {
    "stock": "",
    "soft": "-attention soft",
    "variational sample": "-attention variational",
    "variational gumbel": "-attention variational -attention_estimator gumbel",
    "variational rws, 5 samples": "-attention variational -attention_estimator rws",
    "variational sum_and_sample, k=3": "-attention variational -attention_estimator sum_and_sample",
    "variational sparse": "-attention variational -attention_estimator sparse",
    "variational enum": "-attention variational -attention_estimator enum",
    "marginal": "-attention marginal",
}
