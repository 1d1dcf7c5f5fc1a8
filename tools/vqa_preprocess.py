"""Prepare questions, answers and image features from a checkout."""

from onmt_varattn.bin.vqa.preprocess import main

if __name__ == "__main__":
    main()
