"""Crafted checkpoints, and a harness that tries them on everything that loads a checkpoint.

    pickles, archives   torch's zip of a pickle, taken apart and written by hand
    tensors_file        the layout of safetensors, likewise
    strict, conversion  an independent reader of it, and old files written in it
    pickle_cases, zip_cases, tensor_cases, content_cases, format_cases
                        the corpus: each case writes one file
    entry_points        everything that loads a checkpoint
    world, arena        texts, scenes and good files that all is tried with
    watch               what a process did: files, processes, sockets, memory
    trial, harness      tries files on entry points, in a process of their own
    inert               what may come out of a file
    mutators            random changes, for hypothesis and the fuzzer

`files/` has checkpoints as OpenNMT-py 2.3.0 and version 0.1 wrote them, which no later version writes.
"""
