"""Text to tokens and back, and vocabularies."""

TOKENIZERS = ("moses", "none")
SUBWORDS = ("sentencepiece", "bpe", "none")
VOCAB_SIZE = 14_000  # default maximum number of subwords or words
WORDS_A_SUBWORD = 50  # running words of the training text to a subword, so that each is seen often
