"""Prepare questions, answers and image features from a checkout."""

from onmt_varattn.bin.vqa_preprocess import main

if __name__ == "__main__":
    main()
