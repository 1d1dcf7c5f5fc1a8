"""Score models on questions about images, or ask one, from a checkout; the same as onmt_vqa_evaluate."""

from onmt_varattn.bin.vqa.evaluate import main

if __name__ == "__main__":
    main()
