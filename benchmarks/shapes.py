"""Shapes of models and batches, and the systems that are measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Sizes of a model and of its batches."""

    words: int  # size of both vocabularies
    batch: int
    source: int  # words per sentence
    target: int
    layers: int
    embeddings: int
    memory: int
    decoder: int
    attention: int

    def options(self) -> str:
        """Options of onmt_train."""
        return (
            f"-encoder_type brnn -layers {self.layers} -word_vec_size {self.embeddings} "
            f"-enc_rnn_size {self.memory} -dec_rnn_size {self.decoder} -global_attention mlp -input_feed 1 "
            "-dropout 0.3 -optim adam -learning_rate 0.0003 -max_grad_norm 5"
        )


PAPER = {"words": 14_000, "layers": 2, "embeddings": 512, "source": 25, "target": 25}
PAPER_SIZES = {"memory": 1024, "decoder": 768, "attention": 512}
EQUAL_SIZES = {"memory": 768, "decoder": 768, "attention": 768}  # possible in stock OpenNMT-py

SHAPES = {
    "small": Shape(
        words=10_000, batch=32, source=14, target=15, layers=1,
        embeddings=256, memory=256, decoder=256, attention=256,
    ),
    "paper, batch 6": Shape(batch=6, **PAPER, **PAPER_SIZES),
    "paper, batch 32": Shape(batch=32, **PAPER, **PAPER_SIZES),
    "equal sizes, batch 6": Shape(batch=6, **PAPER, **EQUAL_SIZES),
    "equal sizes, batch 32": Shape(batch=32, **PAPER, **EQUAL_SIZES),
}  # fmt: skip

KEPT = "stock, keeping freed memory"
STOCK = ("stock", KEPT)  # in processes without the plugin

AT_ONCE = "-attention_warmup_steps 0"  # measure the objective, not the warm-up

# Options of each system.
TRAINED = {
    "stock": "",
    KEPT: "",
    "soft": "-attention soft",
    "variational sample": f"{AT_ONCE} -attention variational",
    "variational gumbel": f"{AT_ONCE} -attention variational -attention_estimator gumbel",
    "variational rws, 5 samples": f"{AT_ONCE} -attention variational -attention_estimator rws",
    "variational sum_and_sample, k=3": f"{AT_ONCE} -attention variational "
    "-attention_estimator sum_and_sample",
    "variational sparse": f"{AT_ONCE} -attention variational -attention_estimator sparse",
    "variational enum": f"{AT_ONCE} -attention variational -attention_estimator enum",
    "marginal": f"{AT_ONCE} -attention marginal",
}
DECODED = {
    "stock": "",
    KEPT: "",
    "soft": "-test_attention soft",
    "kmax 1": "-kmax 1",
    "kmax 5": "-kmax 5",
    "exact": "-test_attention exact",
}
