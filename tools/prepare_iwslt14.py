"""Prepare IWSLT14 for onmt_train."""

from onmt_varattn.bin.corpora.prepare_iwslt14 import main

if __name__ == "__main__":
    main()
