"""Children: side by side but no more than allowed, heard, and ended in order."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from meadow.sweeps.children import ChildCommand, Children

OBEYS = (
    "import signal, sys; signal.signal(signal.SIGINT, lambda *_: sys.exit(0)); "
    'print(\'{"event": "ready"}\', flush=True); signal.pause()'
)
STUBBORN = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    'print(\'{"event": "ready"}\', flush=True); signal.pause()'
)


class Heard:
    """Runs programs and notes what is heard of them."""

    def __init__(self, folder: Path, *, at_once: int = 2) -> None:
        self.folder = folder
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.ends: dict[str, tuple[int, str]] = {}
        self.on_event = lambda name, event: None
        self.children = Children(at_once=at_once, on_event=self._note, on_end=self._end)

    def _note(self, name: str, event: Mapping[str, Any]) -> None:
        self.events.append((name, event))
        self.on_event(name, event)

    def _end(self, name: str, code: int, error: str) -> None:
        self.ends[name] = (code, error)

    def run(self, **programs: str) -> None:
        """Run Python programs, each a job of its keyword's name."""
        self.children.run(
            [
                ChildCommand(
                    name=name,
                    command=lambda program=program: [sys.executable, "-c", program],
                    log=self.folder / f"{name}.txt",
                )
                for name, program in programs.items()
            ]
        )


@pytest.fixture
def heard(tmp_path: Path) -> Heard:
    """Two at a time."""
    return Heard(tmp_path)


def test_events_and_ends_are_heard(heard: Heard) -> None:
    """Objects with "event" are events, whatever else is printed; an exit code has its error."""
    good = "print('{\"event\": \"a\", \"n\": 1}'); print('text'); print('[1]'); print('3')"
    bad = 'import sys; print(\'{"error": "no data"}\'); sys.exit(2)'
    heard.run(good=good, bad=bad, crashed="import os; os.abort()", odd="raise OSError('gone')")
    assert heard.events == [("good", {"event": "a", "n": 1})]
    assert heard.ends["good"] == (0, "")
    assert heard.ends["bad"] == (2, "no data")
    assert heard.ends["crashed"][0] == -signal.SIGABRT
    assert heard.ends["odd"] == (1, "OSError: gone")
    assert [path.name for path in heard.folder.iterdir()] == ["odd.txt"], "empty logs go"


def test_no_more_run_than_allowed(heard: Heard) -> None:
    """With two places the third starts when one has ended."""
    running: set[str] = set()
    most = 0
    both = heard.folder / "both"

    def count(name: str, event: Mapping[str, Any]) -> None:
        nonlocal most
        running.add(name)
        most = max(most, len(running - set(heard.ends)))
        if most == 2:
            both.touch()  # the first two may end

    heard.on_event = count
    program = (
        'import os, time\nprint(\'{"event": "x"}\', flush=True)\n'
        f"while not os.path.exists({str(both)!r}): time.sleep(0.01)"
    )
    heard.run(**{f"job{number}": program for number in range(5)})
    assert len(heard.ends) == 5 and most == 2


@pytest.mark.parametrize(("at_once", "threads"), [(2, "1"), (1, "5")])
def test_threads_are_shared_fairly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, threads: str
) -> None:
    """Side by side each has one thread; alone it has what the environment says."""
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    heard = Heard(tmp_path, at_once=at_once)
    program = (
        "import json, os; print(json.dumps({'event': 'x', 'n': os.environ['OMP_NUM_THREADS']}))"
    )
    heard.run(job=program)
    assert heard.events == [("job", {"event": "x", "n": threads})]


def test_the_first_ctrl_c_is_passed_on(heard: Heard) -> None:
    """All children under way hear it, and none begins."""

    def interrupt(name: str, event: Mapping[str, Any]) -> None:
        if len(heard.events) == 2:
            signal.raise_signal(signal.SIGINT)

    heard.on_event = interrupt
    before = signal.getsignal(signal.SIGINT)
    heard.run(first=OBEYS, second=OBEYS, third=OBEYS)
    assert heard.ends == {"first": (0, ""), "second": (0, "")}
    assert heard.children.stops == 1 and signal.getsignal(signal.SIGINT) is before


def test_the_third_ctrl_c_kills(heard: Heard) -> None:
    """A child that does not hear is not waited for forever."""

    def insist(name: str, event: Mapping[str, Any]) -> None:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)

    heard.on_event = insist
    heard.run(deaf=STUBBORN)
    assert heard.ends["deaf"][0] == -signal.SIGKILL


def test_an_error_of_ours_leaves_no_child(heard: Heard) -> None:
    """If showing an event fails, the children are ended before the error goes on."""
    pids: list[int] = []

    def fail(name: str, event: Mapping[str, Any]) -> None:
        pids.extend(child.process.pid for child in heard.children._running.values())
        raise BrokenPipeError("nobody reads")

    heard.on_event = fail
    with pytest.raises(BrokenPipeError, match="nobody reads"):
        heard.run(first=OBEYS)
    (pid,) = pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_line_without_end_is_passed_over(heard: Heard) -> None:
    """An app that prints megabytes without a line end does not fill the memory."""
    event = json.dumps({"event": "x"})
    heard.run(loud=f"print('y' * (3 << 20)); print('{event}')")
    assert heard.events == [("loud", {"event": "x"})]


def test_outside_of_the_main_thread(heard: Heard) -> None:
    """Signals belong to the main thread; elsewhere the children run without them."""
    thread = threading.Thread(target=lambda: heard.run(job='print(\'{"event": "x"}\')'))
    thread.start()
    thread.join(60)
    assert heard.ends == {"job": (0, "")}
