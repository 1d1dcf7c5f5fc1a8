"""The paper's tables on your own machine: prepare, train, evaluate, write."""

from onmt_varattn.bin.analysis.reproduce import main

if __name__ == "__main__":
    main()
