"""Keep freed memory in the process: training frees and takes the same hundreds of megabytes each step.

glibc gives large blocks back to the system as soon as they are freed. The next step takes them
again, and the system has to find and clear every page anew: docs/benchmarks.md has what it costs.
"""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8  # glibc's names for its parameters, from malloc.h


def keep_freed_memory() -> bool:
    """Tell glibc to reuse freed memory rather than return it. Elsewhere nothing happens.

    The process's peak stays what it is; between peaks it holds on to its memory.

    Returns:
        Whether the C library took the setting.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # no such function in musl
    if mallopt is None:
        return False
    # A thread's own arena is too small for batches of image features, and would map them anew each time.
    settings = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, ARENA_MAX: 1}
    return all(mallopt(name, value) for name, value in settings.items())
