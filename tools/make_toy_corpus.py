"""Write the toy corpus from a checkout; the same as onmt_make_toy_corpus."""

from onmt_varattn.bin.corpora.make_toy_corpus import main

if __name__ == "__main__":
    main()
