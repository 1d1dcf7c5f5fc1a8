"""Run the demo from a checkout; the same as onmt_demo."""

from onmt_varattn.bin.nmt.demo import main

if __name__ == "__main__":
    main()
