"""What every decoder must hold to, whatever it is given: typed errors, little time, little memory."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from meadow.errors import MeadowError

__all__ = ["CPU_S_MAX", "MEMORY_BYTES_MAX", "BrokenError", "outcome_of", "within_memory"]

CPU_S_MAX = 2.0
"""For one input, in CPU time of this process: how busy the machine is makes no difference."""
MEMORY_BYTES_MAX = 200 << 20
"""Above what the process had before."""


class BrokenError(Exception):
    """A decoder did not hold to its bounds."""


class _SlowError(BaseException):
    """Raised within what takes too long; no handler of errors takes it for its own."""


def outcome_of(run: Callable[[], object]) -> tuple[str, ...]:
    """Run a decoder on one input; return what came of it: where it ended, and with which error.

    Raises:
        BrokenError: it raised what is in no error tree, or took too long.
    """
    before = signal.signal(signal.SIGVTALRM, _too_slow)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S_MAX)
    try:
        run()
        return ("passed",)
    except MeadowError as error:
        return (type(error).__name__, *_places(error))
    except _SlowError as error:
        raise BrokenError(f"more than {CPU_S_MAX} s of CPU time, at {_places(error)}") from error
    except Exception as error:
        raise BrokenError(f"{type(error).__name__} is raised, at {_places(error)}") from error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def within_memory() -> Iterator[None]:
    """Check that the block holds little more memory at once than there was before.

    Raises:
        BrokenError: it held more. Where the kernel does not tell, nothing is checked.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _kernel_bytes("VmRSS")
    except OSError:
        yield
        return
    yield
    more = _kernel_bytes("VmHWM") - before
    if more > MEMORY_BYTES_MAX:
        raise BrokenError(f"{more >> 20} MiB of memory were taken, more than 200")


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise _SlowError


def _places(error: BaseException) -> tuple[str, ...]:
    """Return the lines of Meadow's that the error went through."""
    places, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/tests/" not in code.co_filename:
            places.append(f"{Path(code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return tuple(places)


def _kernel_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise OSError(f"the kernel does not tell {name}")
