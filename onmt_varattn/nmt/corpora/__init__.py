"""Public corpora from the place they are published at to text that `onmt_preprocess` reads.

    download    an archive, resumed where it broke off, and its checksum
    unpack      the files wanted of an archive, and nothing outside of their directory
    reading     markup to lines
    cleaning    tokens, and which sentence pairs to leave out
    stages      what is done already
    prepare     all of these for one `Corpus`

The corpora themselves are tables in `bin/prepare_*.py`.
"""
