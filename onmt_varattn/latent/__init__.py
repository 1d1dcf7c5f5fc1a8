"""Latent alignment, in torch alone: nothing here knows OpenNMT-py or text.

Letters beside tensors, in this package and in nmt/:

    N  sentences            S  source positions      D  decoder state (query) size
    Q  queries a sentence   K  candidates a query    M  memory size, one vector a source position
    R  rows: real target positions of a batch        A  attention size
    T  target positions     V  vocabulary
"""
