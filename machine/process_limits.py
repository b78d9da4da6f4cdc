"""Settings of a long-lived process: freed memory that it keeps, threads, and open files.

Memory: glibc gives the end of its heap back to the kernel as soon as 128 kB are free there, and takes it
again, page by page, for the next chunk of a blob. On a machine whose memory is virtual each of
those pages is a trip to the host: measured, half of what a transfer costs. And every thread has
a heap of its own, which would each keep what is free: two for all are enough.

Cores: a thread of a parallel operation that waits for the others spins, and where other processes
want the same cores it spins in the way of whom it waits for: measured, a step of 20 ms took from
100 to 500 beside one busy process, and 30 with threads that sleep instead. A simulation has the
machine to itself, as a rule, and operations so short that waking a thread takes longer: its threads
wait for each other for some 50 us before they sleep. A round of a thousand tiny clients: 51 ms with
one thread, 53 with two that sleep, 38 with two that wait; beside a busy process 65, 67 and 128.

Files: an update that waits to be aggregated, and a connection, hold one each.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

__all__ = [
    "allow_many_files",
    "available_cores",
    "begin_with_one_thread",
    "give_back_freed_memory",
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
    """Give back to the system what is free anywhere in this process, where there is glibc."""
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(_KEPT_BYTES // 4)


def use_large_pages() -> None:
    """Let torch's large tensors lie in large pages, here and in child processes.

    To write to 100 MB for the first time then takes 10 ms instead of 37 (measured). It takes effect
    if it comes before torch is imported; what the environment says is kept.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def keep_grpc_quiet() -> None:
    """Let gRPC's core write nothing of its own to stderr, here and in child processes: a line each
    second while a server is away, in words of its own. What it meets is told in ours.

    It takes effect if it comes before gRPC is imported; what the environment says is kept.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def begin_with_one_thread() -> None:
    """Let NumPy and torch use one thread, unless the environment says how many.

    It takes effect if it comes before they are imported, here and in child processes.
    """
    global _is_ours
    _is_ours = not any(name in os.environ for name in _THREADS)
    for name in _THREADS:
        os.environ.setdefault(name, "1")


def threads_at_most(present: int) -> int:
    """Return how many threads a large operation may have that has `present` ones now: a core each,
    unless the environment said how many."""
    return available_cores() if _is_ours else present


def wait_for_threads() -> None:
    """Let threads of parallel operations wait a little for the next one before they sleep.

    It takes effect if it comes before torch is imported, and where torch uses GNU's OpenMP.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", str(_SPINS))


def share_cores() -> None:
    """Let threads that wait for others sleep, here and in child processes.

    It takes effect if it comes before torch is imported; what the environment says is kept.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def allow_many_files() -> None:
    """Let this process open as many files as its system allows any process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
