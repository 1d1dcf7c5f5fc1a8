"""Visual question answering with a latent alignment over image regions; it does not need OpenNMT-py.

Letters in tensor shapes, in addition to those of latent/:

    N  questions per batch      S  boxes (regions) per image       F  feature size of a box
    L  words per question       V  answers                         D  query size
    A  attention size
"""
