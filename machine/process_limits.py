"""Settings of a process: the freed memory that it keeps, its threads, and its open files.

Memory: glibc returns the end of its heap to the kernel as soon as 128 kB are free there, and requests it
again, page by page, for the next chunk of a blob. On a virtual machine each of these page faults reaches
the host: half of the cost of a transfer, measured. Each thread also has a heap that keeps free memory;
here all threads share two.

Cores: a thread of a parallel operation spins while it waits for the others. Where another process needs the
same cores, it takes time from the threads that it waits for: a step of 20 ms took 100 to 500 ms beside
one busy process, and 30 ms with threads that sleep (measured). A simulation usually has the machine to
itself, and its operations are so short that waking a thread takes longer; its threads therefore spin for
about 50 us before they sleep. A round of a thousand tiny clients took 51 ms with one thread, 53 ms with two
that sleep and 38 ms with two that spin; beside a busy process 65, 67 and 128 ms.

Files: each update that waits for aggregation, and each connection, holds one open.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import sys

__all__ = [
    "allow_many_files",
    "available_cores",
    "begin_with_one_thread",
    "give_back_freed_memory",
    "keep_accountants_quiet",
    "keep_freed_memory",
    "keep_grpc_quiet",
    "share_cores",
    "threads_at_most",
    "use_large_pages",
    "wait_for_threads",
]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8  # malloc.h
_KEPT_BYTES = 64 << 20
_STEP_BYTES = 4 << 20
_MMAP_BYTES = 32 << 20  # glibc takes no more
_HEAPS = 2
_THREADS = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
_SPINS = 10_000

_is_ours = False
"""Whether the environment leaves the number of threads to Meadow."""


def keep_freed_memory() -> None:
    """Let this process keep up to 64 MB of freed memory. Does nothing where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TOP_PAD, _STEP_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_ARENA_MAX, _HEAPS)


def give_back_freed_memory() -> None:
    """Return all free memory of this process to the system, where there is glibc."""
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(_KEPT_BYTES // 4)


def use_large_pages() -> None:
    """Place torch's large tensors in huge pages, here and in child processes.

    The first write to 100 MB then takes 10 ms instead of 37 ms (measured). Takes effect if it is called
    before torch is imported; a value in the environment is kept.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def keep_grpc_quiet() -> None:
    """Silence gRPC's core on stderr, here and in child processes: it writes a line each second while a
    server is unreachable, which Meadow reports itself.

    Takes effect if it is called before gRPC is imported; a value in the environment is kept.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def keep_accountants_quiet() -> None:
    """Do not log that dp-accounting leaves out orders of its RDP accountant whose series does not converge:
    that is usual, and the bound by the other orders holds."""
    logging.getLogger("absl").addFilter(_is_no_excluded_order)


def _is_no_excluded_order(record: logging.LogRecord) -> bool:
    return "failed to converge" not in str(record.msg)


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def begin_with_one_thread() -> None:
    """Limit NumPy and torch to one thread, unless the environment sets a number.

    Takes effect if it is called before they are imported, here and in child processes.
    """
    global _is_ours
    _is_ours = not any(name in os.environ for name in _THREADS)
    for name in _THREADS:
        os.environ.setdefault(name, "1")


def threads_at_most(present: int) -> int:
    """Return the number of threads for a large operation: one a core, or the `present` number if the
    environment set it."""
    return available_cores() if _is_ours else present


def wait_for_threads() -> None:
    """Let threads of parallel operations spin briefly before they sleep.

    Takes effect if it is called before torch is imported, where torch uses GNU's OpenMP.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", str(_SPINS))


def share_cores() -> None:
    """Let threads that wait sleep at once, here and in child processes.

    Takes effect if it is called before torch is imported; a value in the environment is kept.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def allow_many_files() -> None:
    """Let this process open as many files as its system allows any process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
