"""Train a model that answers questions about images from a checkout; the same as onmt_vqa_train."""

from onmt_varattn.bin.vqa.train import main

if __name__ == "__main__":
    main()
