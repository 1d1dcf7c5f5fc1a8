"""Score models from a checkout; the same as onmt_evaluate."""

from onmt_varattn.bin.analysis.evaluate import main

if __name__ == "__main__":
    main()
