"""Translate from a checkout; the same as onmt_translate."""

from onmt_varattn.bin.nmt.translate import main

if __name__ == "__main__":
    main()
