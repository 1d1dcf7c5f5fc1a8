"""Write a page of alignments from a checkout; the same as onmt_explore."""

from onmt_varattn.bin.analysis.explore import main

if __name__ == "__main__":
    main()
