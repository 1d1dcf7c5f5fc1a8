"""Crafted checkpoints, and a harness that tries them on everything that loads a checkpoint.

    pickles, archives   torch's zip of a pickle, taken apart and written by hand
    tensors_file        the layout of safetensors, likewise
    pickle_cases, zip_cases, tensor_cases, content_cases, format_cases
                        the corpus: each case writes one file
    entry_points        everything that loads a checkpoint
    watch               what a process did: files, processes, sockets, memory
    harness             tries files on entry points, in a process of their own
    inert               what may come out of a file
    mutators            random changes, for hypothesis and the fuzzer

`files/` has checkpoints as OpenNMT-py 2.3.0 and version 0.1 wrote them, which no later version writes.
"""
