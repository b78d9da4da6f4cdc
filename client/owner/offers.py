"""Apps that the server offers: fetched, shown to the owner, and installed after approval.

DIR/offers/NAME/      an offered version of an app: offer.json, and its files under app/
DIR/approved/NAME/SHA256/ an approved version
DIR/approved/.list.json which version of each app is approved, by whom; which were refused

Nothing in DIR/offers is ever run or imported. Before each run of an approved version, its hash is
compared with the approved one, so neither a later offer nor the app itself can change it.
"""

from __future__ import annotations

import difflib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ...apps.folder import APP_BYTES_MAX, content_hash, list_files, unpack
from ...config.client_config import APPROVED_FILE, load_client_config
from ...errors import AppError, IdentityError, MeadowError, RefusedError, StoreError
from ...transport.app_signature import AppSignature
from ...transport.durable import make_folder, sync_folder, write_file
from ...transport.fleet_pb2 import App as OfferedApp

__all__ = ["ARCHIVE_BYTES_MAX", "OFFERS_MAX", "Change", "Offer", "Offers"]

ARCHIVE_BYTES_MAX: Final = APP_BYTES_MAX
OFFERS_MAX: Final = 8
"""The most apps that wait for the owner, each with the version that was offered last."""
REFUSED_MAX: Final = 1000
DIFF_LINES_MAX: Final = 20_000
"""The most lines of all files that are compared for the owner; larger files are only named."""
DIFF_BYTES_MAX: Final = 512 << 10
HASH_CHARS_MIN: Final = 12
"""The fewest characters of a hash that an owner must type."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A version that waits for the owner."""

    name: str
    sha256: str
    run_id: int
    at_s: float
    signer: str = ""
    signed_at_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One file of an offer, compared with the installed version."""

    path: str
    kind: str
    """added, removed, changed or same."""
    size_bytes: int
    diff: tuple[str, ...] = ()


@dataclass(slots=True)
class _Approved:
    apps: dict[str, str] = field(default_factory=dict)
    signers: dict[str, str] = field(default_factory=dict)
    newest_signed_s: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)


class Offers:
    """The offered and approved apps of an agent's folder; agent and commands may use it together."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offers = directory / "offers"
        self._apps = directory / "approved"

    def pending(self) -> list[Offer]:
        """Return the offers that wait for the owner, sorted by name."""
        found = []
        for folder in sorted(self._offers.glob("*")):
            if _NAME.fullmatch(folder.name) and (offer := _read_offer(folder)) is not None:
                found.append(offer)
        return found

    @property
    def incoming(self) -> Path:
        """The folder for fetched archives; leftovers of earlier transfers are deleted."""
        return self._offers / ".incoming"

    def wants(self, app: OfferedApp) -> bool:
        """Return whether to fetch an offered version, as the owner does not have it yet.

        Raises:
            RefusedError: the version cannot be accepted.
        """
        name, sha256 = _identity_of(app)
        with self._locked():
            if f"{name}@{sha256}" in self._read().refused:
                raise RefusedError(
                    f"this site's owner has refused app {name!r} sha256:{sha256[:12]}..."
                )
            there = _read_offer(self._offers / name)
            if there is None or there.sha256 != sha256:
                if there is None and len(self.pending()) >= OFFERS_MAX:
                    raise RefusedError(
                        f"{OFFERS_MAX} apps already wait for the approval of this site's owner"
                    )
                if not 0 < app.archive.size_bytes <= ARCHIVE_BYTES_MAX:
                    raise RefusedError(
                        f"the archive of app {name!r} has {app.archive.size_bytes} bytes; at most "
                        f"{ARCHIVE_BYTES_MAX} are accepted"
                    )
                make_folder(self._offers, mode=0o700)
                make_folder(self.incoming, mode=0o700)
                return True
        return False

    def receive(self, app: OfferedApp, archive: Path | None, *, run_id: int, now_s: float) -> None:
        """Store an offered version, and delete its archive; `archive` is None if it is stored
        already. Return only if the version is installed now, as its author's key is trusted.

        Raises:
            RefusedError: the version waits for the owner's approval, or is invalid.
        """
        name, sha256 = _identity_of(app)
        if archive is not None:
            self._store(app, name, sha256, archive, run_id=run_id, now_s=now_s)
        waits = (
            f"sha256:{sha256[:12]}... waits for the approval of this site's owner "
            f"(`meadow client apps show {name}` there)"
        )
        signature = _signature_of(app, name, sha256)
        trusted = load_client_config(self._directory).auto_approve
        if signature is None or signature.signer not in trusted:
            raise RefusedError(waits)
        with self._locked():
            newest_s = self._read().newest_signed_s.get(name, 0)
        if signature.signed_at_s <= newest_s:
            raise RefusedError(
                f"{waits}: its author has signed a newer version, which was installed here"
            )
        try:
            self.approve(name, sha256, signature=signature)
        except AppError as error:
            raise RefusedError(str(error)) from error

    def approve(self, name: str, sha256: str, *, signature: AppSignature | None = None) -> Path:
        """Install an offered version, so that it may run, and return its folder.

        Raises:
            AppError: no such version is offered, or its files were changed.
        """
        with self._locked():
            offer, folder = self._offered(name, sha256)
            if content_hash(folder / "app") != offer.sha256:
                shutil.rmtree(folder)
                raise AppError(
                    f"the files of app {name!r} in {folder} do not match the offer; they were "
                    "deleted, and are fetched again with the next round"
                )
            target = self._apps / name / offer.sha256
            make_folder(target.parent)
            shutil.rmtree(target, ignore_errors=True)
            os.rename(folder / "app", target)
            sync_folder(target.parent)
            if content_hash(target) != offer.sha256:  # it was changed meanwhile
                shutil.rmtree(target)
                raise AppError(f"the files of app {name!r} were changed while it was installed")
            known = self._read()
            known.apps[name] = offer.sha256
            known.signers[name] = signature.signer if signature else "owner"
            if signature is not None:
                known.newest_signed_s[name] = signature.signed_at_s
            self._write(known)
            shutil.rmtree(folder, ignore_errors=True)
            for old in (self._apps / name).iterdir():
                if old != target:
                    shutil.rmtree(old, ignore_errors=True)
        return target

    def refuse(self, name: str, sha256: str) -> str:
        """Delete an offered or approved version, refuse it from now on, and return its hash.

        Raises:
            AppError: there is no such version.
        """
        with self._locked():
            known = self._read()
            approved, sha256 = known.apps.get(name, ""), sha256.removeprefix("sha256:")
            if len(sha256) >= HASH_CHARS_MIN and approved.startswith(sha256):
                found = known.apps.pop(name)
                known.signers.pop(name, None)
            else:
                found = self._offered(name, sha256)[0].sha256
            known.refused = [*known.refused, f"{name}@{found}"][-REFUSED_MAX:]
            self._write(known)
            shutil.rmtree(
                self._apps / name if found == approved else self._offers / name, ignore_errors=True
            )
        return found

    def changes(self, name: str, installed: Path | None) -> tuple[Offer, list[Change]]:
        """Return an offer and its differences from the installed version.

        Raises:
            AppError: nothing is offered under this name, or its files were changed.
        """
        with self._locked():
            offer = _read_offer(self._offers / name) if _NAME.fullmatch(name) else None
            if offer is None:
                raise AppError(f"no version of app {name!r} waits; `meadow client apps` lists them")
            folder = self._offers / name / "app"
            if content_hash(folder) != offer.sha256:
                raise AppError(f"the files in {folder} do not match the offer; refuse it")
            new = dict(list_files(folder))
            old = (
                dict(list_files(installed)) if installed is not None and installed.is_dir() else {}
            )
            left = DIFF_LINES_MAX
            found = []
            for path in sorted({*new, *old}):
                change = _change(path, old.get(path), new.get(path), left)
                left -= len(change.diff)
                found.append(change)
        return offer, found

    # ------------------------------------------------------------------ inside

    def _store(
        self,
        app: OfferedApp,
        name: str,
        sha256: str,
        archive: Path,
        *,
        run_id: int,
        now_s: float,
    ) -> None:
        """Unpack an archive; if its content has another hash than offered, delete it."""
        staged = self._offers / ".staged"
        shutil.rmtree(staged, ignore_errors=True)
        try:
            data = archive.read_bytes()
            make_folder(staged, mode=0o700)
            unpack(data, staged / "app")
            if content_hash(staged / "app") != sha256:
                raise AppError(f"the files of app {name!r} do not have the hash of the offer")
            signature = _signature_of(app, name, sha256)
            offer = Offer(name=name, sha256=sha256, run_id=run_id, at_s=now_s)
            if signature is not None:
                offer = replace(offer, signer=signature.signer, signed_at_s=signature.signed_at_s)
            write_file(staged / "offer.json", json.dumps(asdict(offer)).encode())
            with self._locked():
                shutil.rmtree(self._offers / name, ignore_errors=True)
                os.rename(staged, self._offers / name)
                sync_folder(self._offers)
        except AppError as error:
            raise RefusedError(str(error)) from error
        except OSError as error:
            raise StoreError(f"{self._offers}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(staged, ignore_errors=True)
            shutil.rmtree(self.incoming, ignore_errors=True)

    def _offered(self, name: str, sha256: str) -> tuple[Offer, Path]:
        folder = self._offers / name
        offer = _read_offer(folder) if _NAME.fullmatch(name) else None
        start = sha256.removeprefix("sha256:")
        if offer is None or len(start) < HASH_CHARS_MIN or not offer.sha256.startswith(start):
            waits = f"sha256:{offer.sha256}" if offer else "none"
            raise AppError(
                f"the offer of app {name!r:.80} is {waits}, not {sha256!r:.80}; give the hash that "
                f"`meadow client apps show` shows, or its first {HASH_CHARS_MIN} digits or more"
            )
        return offer, folder

    def _read(self) -> _Approved:
        try:
            entries: Mapping[str, Any] = json.loads((self._apps / APPROVED_FILE).read_text())
            return _Approved(**entries)
        except FileNotFoundError:
            return _Approved()
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(
                f"{self._apps / APPROVED_FILE} cannot be read: {error}; restore it, or delete it and "
                "approve the apps again"
            ) from error

    def _write(self, known: _Approved) -> None:
        write_file(self._apps / APPROVED_FILE, json.dumps(asdict(known), indent=1).encode())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_folder(self._apps, mode=0o700)
        fd = os.open(self._apps / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _identity_of(app: OfferedApp) -> tuple[str, str]:
    """Return an offered app's name, which is valid as a folder's name, and its hash.

    Raises:
        RefusedError: the name or the hash is invalid.
    """
    name, sha256 = app.name, app.sha256.removeprefix("sha256:")
    if not _NAME.fullmatch(name) or not _SHA256.fullmatch(sha256):
        raise RefusedError("the server offers an app with an invalid name or hash")
    return name, sha256


def _read_offer(folder: Path) -> Offer | None:
    try:
        offer = Offer(**json.loads((folder / "offer.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return offer if offer.name == folder.name and _SHA256.fullmatch(offer.sha256) else None


def _signature_of(app: OfferedApp, name: str, sha256: str) -> AppSignature | None:
    """Return the signature in an offer, if it is valid for this version."""
    if not app.signature:
        return None
    try:
        signature = AppSignature.from_bytes(app.signature)
        signature.verify(name, sha256)
    except (IdentityError, MeadowError):
        return None
    return signature


def _change(path: str, old: Path | None, new: Path | None, left: int) -> Change:
    before = old.read_bytes() if old else b""
    after = new.read_bytes() if new else b""
    kind = "added" if old is None else "removed" if new is None else "changed"
    if old is not None and new is not None and before == after:
        return Change(path=path, kind="same", size_bytes=len(after))
    count = before.count(b"\n") + after.count(b"\n")
    if count > left or len(before) + len(after) > DIFF_BYTES_MAX:
        shown = [f"too large to be compared here: {len(before)} bytes before, {len(after)} now"]
        return Change(path=_escaped(path), kind=kind, size_bytes=len(after), diff=tuple(shown))
    try:
        lines = difflib.unified_diff(
            before.decode().split("\n"), after.decode().split("\n"), "installed", "offered",
            lineterm="",
        )  # fmt: skip
        shown = [_escaped(line) for line in lines]
    except UnicodeDecodeError:
        shown = [f"no text: {len(before)} bytes before, {len(after)} now"]
    return Change(path=_escaped(path), kind=kind, size_bytes=len(after), diff=tuple(shown))


def _escaped(line: str) -> str:
    """Return a line without terminal control characters and bidirectional text controls."""
    return "".join(
        mark if mark.isprintable() or mark == "\t" else ascii(mark)[1:-1] for mark in line
    )
