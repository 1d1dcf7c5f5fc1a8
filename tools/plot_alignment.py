"""Draw alignments from a checkout; the same as onmt_plot_alignment."""

from onmt_varattn.bin.analysis.plot_alignment import main

if __name__ == "__main__":
    main()
