"""Detects damage in SQLite's write-ahead log, which SQLite itself does not report.

SQLite stops reading the log at the first frame whose checksum does not match, because a write that a crash
cut short looks the same, and drops the transactions after it: one flipped bit revokes committed
transactions. The log of a killed process is therefore checked before SQLite opens it. A frame is damaged, not
cut short, if flipping one bit makes it match, or if more than one transaction follows it: each
transaction is synced before the next one, so a crash can cut only the last.

Format: https://www.sqlite.org/fileformat2.html#walformat
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["accept_log", "log_damage", "log_of"]

MAGIC: Final = (0x377F0682, 0x377F0683)
"""Checksums over words that begin with their lowest byte, or with their highest."""
HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
PAGE_BYTES_MAX: Final = 65_536
BATCH_FRAMES: Final = 256
LOST_TRANSACTIONS_MIN: Final = 2
Words = npt.NDArray[np.uint32]


def log_of(path: Path) -> Path:
    """Return the path of a database's log."""
    return path.with_name(f"{path.name}-wal")


def log_damage(path: Path, *, synced: bool = True) -> str | None:
    """Return which part of a log is damaged; None if it is intact or does not exist.

    Another process may use it at the same time, so apparent damage is checked twice. Where transactions
    were not `synced` one by one, a power cut may lose any of them: then only a flipped bit counts.
    """
    found = _looked_at(path, synced=synced)
    return found if found is not None and found == _looked_at(path, synced=synced) else None


def accept_log(path: Path) -> None:
    """Recompute the checksums of a damaged log from its content, so that SQLite reads all of it.

    Damaged rows stay damaged; the file serves to recover the intact ones, row by row.
    """
    data = np.fromfile(path, np.uint8)
    if (header := _mended(data[:HEADER_BYTES].tobytes())) is not None:
        data[:HEADER_BYTES] = np.frombuffer(header, np.uint8)
        _Log(data).accept()
        data.tofile(path)


def _looked_at(path: Path, *, synced: bool) -> str | None:
    try:
        data = np.fromfile(path, np.uint8)
    except OSError:  # there is none; or SQLite says what is wrong with it
        return None
    if data.size <= HEADER_BYTES:
        return None
    header = data[:HEADER_BYTES].tobytes()
    if _page_bytes(header) is None:
        return "header" if _mended(header) is not None else None
    return _Log(data).damage(synced=synced)


class _Log:
    """A log with a valid header."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        header = data[:HEADER_BYTES].tobytes()
        _, _, page_bytes, _, *salts, first, second = struct.unpack(">8I", header)
        frame_bytes = FRAME_HEADER_BYTES + page_bytes
        self._order = ">u4" if header[3] & 1 else "<u4"
        count = (data.size - HEADER_BYTES) // frame_bytes
        frames = data[HEADER_BYTES : HEADER_BYTES + count * frame_bytes]
        self._frames = frames.reshape(count, frame_bytes)
        fields = self._frames[:, :FRAME_HEADER_BYTES].copy().view(">u4").astype(np.uint32)
        self._commits = fields[:, 1] != 0
        self._salts = fields[:, 2:4]
        self._stored = fields[:, 4:6]
        self._own_salts = np.array(salts, np.uint32)
        self._before_first = np.array([first, second], np.uint32)

    def damage(self, *, synced: bool) -> str | None:
        """Return which frame is damaged."""
        salted, fits = self._salted(), self._fits()
        wrong = np.flatnonzero(~(salted & fits))
        if not wrong.size:
            return None
        first = int(wrong[0])
        goes_on = salted[first + 1 :] & fits[first + 1 :]
        end = int(np.argmin(goes_on)) if not goes_on.all() else goes_on.size
        lost = int(self._commits[first + 1 : first + 1 + end].sum())
        cut = not synced or lost < LOST_TRANSACTIONS_MIN
        if cut and not self._one_bit_explains(first, bool(fits[first])):
            return None
        return f"frame {first + 1:,} of {len(self._frames):,}"

    def accept(self) -> None:
        """Set the salts and the checksum of each frame to what SQLite expects, up to the end of the log."""
        before, salted = self._before_first, self._salted()
        for frame in range(int(np.flatnonzero(salted)[-1]) + 1 if salted.any() else 0):
            before = _sums(self._words(frame, frame + 1), before[None])[0]
            head = np.concatenate([self._own_salts, before]).astype(">u4")
            self._frames[frame, 8:FRAME_HEADER_BYTES] = head.view(np.uint8)

    def _salted(self) -> npt.NDArray[np.bool_]:
        """Whether each frame belongs to this log and is not a remainder of an earlier one."""
        salted: npt.NDArray[np.bool_] = (self._salts == self._own_salts).all(1)
        return salted

    def _fits(self) -> npt.NDArray[np.bool_]:
        """Whether each frame's checksum matches, continued from that of the frame before."""
        fits = []
        for start in range(0, len(self._frames), BATCH_FRAMES):
            stop = min(start + BATCH_FRAMES, len(self._frames))
            before = (
                self._stored[start - 1 : stop - 1]
                if start
                else np.vstack([self._before_first, self._stored[: stop - 1]])
            )
            fits.append(
                (_sums(self._words(start, stop), before) == self._stored[start:stop]).all(1)
            )
        return np.concatenate(fits) if fits else np.zeros(0, np.bool_)

    def _words(self, start: int, stop: int) -> Words:
        """Return the bytes that the frames' checksums cover: eight bytes of the header, and the page."""
        frames = self._frames[start:stop]
        covered = np.hstack([frames[:, :8], frames[:, FRAME_HEADER_BYTES:]])
        return covered.view(self._order).astype(np.uint32)

    def _one_bit_explains(self, frame: int, fits: bool) -> bool:
        salts_off = _bits(self._salts[frame] ^ self._own_salts)
        if fits or salts_off:
            return fits and salts_off == 1
        before = self._stored[frame - 1] if frame else self._before_first
        words = self._words(frame, frame + 1)
        found, stored = _sums(words, before[None])[0], self._stored[frame]
        if _bits(found ^ stored) == 1:
            return True
        off_first, off_second = (int(each) for each in stored - found)
        first, second, _ = _weights(words.shape[1])
        for change in (sign << bit & 0xFFFFFFFF for bit in range(32) for sign in (1, -1)):
            by = np.uint32(change)
            if ((first * by == off_first) & (second * by == off_second)).any():
                return True
        return False


def _page_bytes(header: bytes) -> int | None:
    """Return the size of a log's pages in bytes; None if its header is damaged."""
    magic, _, size, *_, first, second = struct.unpack(">8I", header)
    if magic not in MAGIC or not (512 <= size <= PAGE_BYTES_MAX and size.bit_count() == 1):
        return None
    words = np.frombuffer(header[:24], ">u4" if magic & 1 else "<u4").astype(np.uint32)
    sums = _sums(words[None], np.zeros((1, 2), np.uint32))[0]
    return size if (int(sums[0]), int(sums[1])) == (first, second) else None


def _mended(header: bytes) -> bytes | None:
    """Return a log's original header, if at most one bit of it has flipped."""
    number = int.from_bytes(header, "big")
    for change in (0, *(1 << bit for bit in range(8 * HEADER_BYTES))):
        mended = (number ^ change).to_bytes(HEADER_BYTES, "big")
        if _page_bytes(mended) is not None:
            return mended
    return None


def _sums(words: Words, before: Words) -> Words:
    """Return SQLite's checksum of each row of words, continued from the checksum `before` it."""
    first, second, start = _weights(words.shape[1])
    own = [(words * weights).sum(1, np.uint32) for weights in (first, second)]
    on = [(before * weights).sum(1, np.uint32) for weights in start]
    return np.stack([own[0] + on[0], own[1] + on[1]], axis=1)


@cache
def _weights(count: int) -> tuple[Words, Words, Words]:
    """Return the coefficients of each of so many words in the first and second sum, modulo 2^32, and how
    those of the two sums that are continued.

    For each two words x and y, SQLite adds x and the second sum to the first, and then y and the first
    to the second.
    """
    first, second = np.zeros(count, np.uint32), np.zeros(count, np.uint32)
    x, y = (1, 1), (0, 1)
    for place in range(count - 2, -1, -2):
        first[place], first[place + 1] = x[0], y[0]
        second[place], second[place + 1] = x[1], y[1]
        x, y = _step(*x), _step(*y)
    a, b = (x[0] - y[0], x[1] - y[1]), y  # x counts as much as both sums do
    return first, second, np.array([[a[0], b[0]], [a[1], b[1]]]).astype(np.uint32)


def _step(first: int, second: int) -> tuple[int, int]:
    first = first + second & 0xFFFFFFFF
    return first, second + first & 0xFFFFFFFF


def _bits(words: Words) -> int:
    return sum(int(word).bit_count() for word in words)
