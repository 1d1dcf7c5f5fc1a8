"""Align words of parallel text from a checkout."""

from onmt_varattn.bin.analysis.align import main

if __name__ == "__main__":
    main()
