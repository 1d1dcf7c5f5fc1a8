"""Prepare IWSLT14 for onmt_train."""

from onmt_varattn.bin.prepare_iwslt14 import main

if __name__ == "__main__":
    main()
