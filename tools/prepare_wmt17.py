"""Prepare WMT17 for onmt_train."""

from onmt_varattn.bin.corpora.prepare_wmt17 import main

if __name__ == "__main__":
    main()
