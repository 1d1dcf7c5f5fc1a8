"""Train from a checkout; the same as onmt_train."""

from onmt_varattn.bin.nmt.train import main

if __name__ == "__main__":
    main()
