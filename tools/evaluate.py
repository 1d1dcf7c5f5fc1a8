"""Score models on a translated text; see docs/evaluation.md."""

from onmt_varattn.bin.evaluate import main

if __name__ == "__main__":
    main()
