"""Prepare parallel text for training; `python preprocess.py -h` lists the options."""

from onmt_varattn.bin.nmt.preprocess import main

if __name__ == "__main__":
    main()
