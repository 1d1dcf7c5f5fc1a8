"""Write toy scenes and questions from a checkout; the same as onmt_make_scenes."""

from onmt_varattn.bin.vqa.make_scenes import main

if __name__ == "__main__":
    main()
