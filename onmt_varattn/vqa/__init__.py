"""Visual question answering with a latent alignment over image regions, in torch alone.

Nothing here knows OpenNMT-py. Letters beside tensors, besides those of latent/:

    N  questions of a batch     S  boxes (regions) of an image     F  feature size of a box
    L  words of a question      V  answers                         D  query size
    A  attention size
"""
