"""Offered apps: only what the owner approved is installed, and only that runs."""

from __future__ import annotations

import asyncio
import io
import shutil
import stat
import zipfile
import zlib
from pathlib import Path

import pytest

from meadow.apps.folder import content_hash, pack
from meadow.client.owner import offers as offers_module
from meadow.client.owner.offers import OFFERS_MAX, Offers
from meadow.client.owner.owner import Owner
from meadow.config.client_config import load_client_config
from meadow.errors import AppError, ConfigError, IdentityError, MeadowError, RefusedError
from meadow.transport import fleet_pb2 as pb
from meadow.transport.app_signature import (
    SIGNATURE_FILE,
    AppSignature,
    make_author_key,
    sign_app,
    signature_beside,
)
from meadow.transport.blobs import blob_path

from ..conftest import Client


def make_app(folder: Path, code: str = "x = 1\n", **files: str) -> Path:
    """Write an app's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "task.py").write_text(code)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def owner_of(folder: Path, text: str = "") -> Offers:
    """Lay out a client's folder and return its offers."""
    folder.mkdir(exist_ok=True)
    (folder / "client.toml").write_text(f"[apps]\n{text}\n")
    return Offers(folder)


def offered(app: Path, name: str = "study", *, signature: bytes = b"") -> tuple[pb.App, bytes]:
    """Return what a server says of an app, and its archive."""
    data = pack(app)
    blob = pb.Blob(id="app-1", size_bytes=len(data), crc32=zlib.crc32(data))
    sha256 = content_hash(app)
    return pb.App(name=name, sha256=sha256, archive=blob, signature=signature), data


def give(offers: Offers, app: pb.App, data: bytes) -> None:
    """Have an offer arrive as the agent does it."""
    archive = None
    if offers.wants(app):
        archive = offers.incoming / "app-1.bin"
        archive.write_bytes(data)
    offers.receive(app, archive, run_id=7, now_s=1000.0)


def waits(offers: Offers, app: pb.App, data: bytes) -> None:
    """Have an offer arrive that waits for its owner."""
    with pytest.raises(RefusedError, match="waits for the approval of this site's owner"):
        give(offers, app, data)


def everything(folder: Path) -> set[str]:
    """Return every path below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_offered_shown_approved(tmp_path: Path) -> None:
    """An offer waits, is shown as a diff, and is installed by name and hash alone."""
    old = make_app(tmp_path / "client" / "apps" / "study", "a = 1\nb = 2\n", gone="bye\n")
    new = make_app(tmp_path / "new", "a = 1\nb = 3\n", more="hi\x1b[31m\u202e\n")
    offers = owner_of(tmp_path / "client", 'study = "apps/study"')
    owner = Owner(tmp_path / "client", content_hash)
    app, data = offered(new)
    waits(offers, app, data)
    assert not offers.wants(app)
    assert owner.sha256("study") == content_hash(old)
    offer, changes = offers.changes("study", owner.folder("study"))
    assert (offer.sha256, offer.run_id, offer.signer) == (app.sha256, 7, "")
    by = {change.path: change for change in changes}
    assert {path: change.kind for path, change in by.items()} == {
        "gone": "removed", "more": "added", "task.py": "changed",
    }  # fmt: skip
    assert by["task.py"].diff[-3:] == ("-b = 2", "+b = 3", " ")
    assert r"+hi\x1b[31m\u202e" in by["more"].diff
    for wrong in ("", app.sha256[:11], "0" * 64, content_hash(old)):
        with pytest.raises(AppError, match="not"):
            offers.approve("study", wrong)
    assert owner.sha256("study") == content_hash(old)
    folder = offers.approve("study", app.sha256[:12])
    assert owner.sha256("study") == app.sha256 == content_hash(folder)
    assert owner.folder("study") == folder and (old / "gone").exists()
    assert offers.pending() == []


def test_what_is_not_what_it_says_leaves_nothing(tmp_path: Path) -> None:
    """Another hash, a broken archive, paths out of the folder, links, hidden files, bombs."""
    offers = owner_of(tmp_path / "client")
    app, data = offered(make_app(tmp_path / "new"))

    def archive(name: str, *, mode: int = stat.S_IFREG | 0o644, size: int = 3) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            file.writestr(info, b"\0" * size, zipfile.ZIP_DEFLATED)
        return buffer.getvalue()

    bad = [
        b"", b"PK", data[: len(data) // 2], archive("../evil.py"), archive("/etc/evil.py"),
        archive("a/../../evil.py"), archive("link", mode=stat.S_IFLNK | 0o777),
        archive(".meadow-signature"), archive("__pycache__/task.pyc"), archive("C:\\evil.py"),
        archive("a\x1b[2J.py"), archive("a\u202eyp.py"), archive("x" * 5000),
        archive("bomb", size=65 << 20), archive("task.py"),
    ]  # fmt: skip
    for each in bad:
        with pytest.raises(MeadowError):
            give(offers, app, each)
        assert offers.pending() == []
        left = everything(tmp_path / "client") - {
            "client.toml",
            "offers",
            "approved",
            "approved/.lock",
        }
        assert left == set(), left
    assert not (tmp_path / "evil.py").exists() and not Path("/etc/evil.py").exists()


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".list.json",
        "../x",
        "a/b",
        "/x",
        "a\0",
        ".hidden",
        "a\n",
        "ä",
        "x" * 65,
        "-x",
    ],
)
def test_names_that_cannot_be(tmp_path: Path, name: str) -> None:
    """A name becomes a folder's, so it is checked before anything is fetched."""
    offers = owner_of(tmp_path / "client")
    app, data = offered(make_app(tmp_path / "new"), name)
    with pytest.raises(RefusedError, match="an invalid name or hash"):
        give(offers, app, data)
    for act in (offers.approve, offers.refuse):
        with pytest.raises(AppError):
            act(name, app.sha256)
    assert not (tmp_path / "client" / "offers").exists()


def test_bounds(tmp_path: Path) -> None:
    """So many apps may wait, of each the newest version; archives have a size."""
    offers = owner_of(tmp_path / "client")
    for index in range(OFFERS_MAX):
        waits(offers, *offered(make_app(tmp_path / "new", f"x = {index}\n"), f"app-{index}"))
    with pytest.raises(RefusedError, match="8 apps already wait"):
        give(offers, *offered(tmp_path / "new", "one-more"))
    waits(offers, *offered(make_app(tmp_path / "new", "x = 99\n"), "app-3"))
    assert len(offers.pending()) == OFFERS_MAX
    app = offered(tmp_path / "new", "app-3")[0]
    app.archive.size_bytes = offers_module.ARCHIVE_BYTES_MAX + 1
    app.sha256 = "0" * 64
    with pytest.raises(RefusedError, match="bytes; at most"):
        offers.wants(app)


def test_changed_between_look_and_approval(tmp_path: Path) -> None:
    """Files that were changed on the disk are not shown and not installed; a newer offer is another
    hash."""
    offers = owner_of(tmp_path / "client")
    app, data = offered(make_app(tmp_path / "new"))
    waits(offers, app, data)
    newer, newer_data = offered(make_app(tmp_path / "newer", "x = 2\n"))
    waits(offers, newer, newer_data)
    with pytest.raises(AppError, match=r"the offer of .* is sha256"):
        offers.approve("study", app.sha256)
    (tmp_path / "client" / "offers" / "study" / "app" / "task.py").write_text("evil = 1\n")
    with pytest.raises(AppError, match="do not match the offer"):
        offers.changes("study", None)
    with pytest.raises(AppError, match="do not match the offer"):
        offers.approve("study", newer.sha256)
    assert load_client_config(tmp_path / "client").apps == {}
    assert offers.wants(newer)


def test_an_approved_copy_that_changes_does_not_run(tmp_path: Path) -> None:
    """Not even if the server then names the hash that it has now."""
    offers = owner_of(tmp_path / "client")
    app, data = offered(make_app(tmp_path / "new"))
    waits(offers, app, data)
    folder = offers.approve("study", app.sha256)
    owner = Owner(tmp_path / "client", content_hash)
    assert owner.sha256("study") == app.sha256
    (folder / "evil.py").write_text("x\n")
    with pytest.raises(AppError, match="was changed since it was approved"):
        owner.sha256("study")


def test_refused_is_refused(tmp_path: Path) -> None:
    """A version that was refused, waiting or installed, is not fetched again; nor is an older one
    installed again by itself."""
    offers = owner_of(tmp_path / "client")
    first = offered(make_app(tmp_path / "new"))
    waits(offers, *first)
    offers.refuse("study", first[0].sha256)
    with pytest.raises(RefusedError, match="owner has refused"):
        offers.wants(first[0])
    second = offered(make_app(tmp_path / "new", "x = 2\n"))
    waits(offers, *second)
    offers.approve("study", second[0].sha256)
    third = offered(make_app(tmp_path / "new", "x = 3\n"))
    waits(offers, *third)
    offers.approve("study", third[0].sha256)
    waits(offers, *second)  # a downgrade waits for the owner again
    offers.refuse("study", third[0].sha256[:12])
    assert load_client_config(tmp_path / "client").apps == {}
    assert [each.sha256 for each in offers.pending()] == [second[0].sha256]


class Author:
    """Signs apps."""

    def __init__(self, folder: Path) -> None:
        self.key_file = folder / "author.pem"
        self.public = make_author_key(self.key_file)

    def sign(self, app: Path, name: str = "study", *, now_s: int = 100) -> bytes:
        """Return the signature of an app as it is now."""
        sha256 = content_hash(app)
        sign_app(app, name=name, sha256=sha256, key_file=self.key_file, now_s=now_s)
        assert content_hash(app) == sha256
        return signature_beside(app, name=name, sha256=sha256)


def test_a_trusted_author(tmp_path: Path) -> None:
    """What a trusted key has signed is installed at once; others' signatures count for nothing."""
    author = Author(tmp_path)
    app = make_app(tmp_path / "new")
    signature = author.sign(app)
    stranger = owner_of(tmp_path / "stranger")
    waits(stranger, *offered(app, signature=signature))
    assert stranger.pending()[0].signer == author.public
    offers = owner_of(tmp_path / "client", f'auto_approve = ["{author.public}"]')
    give(offers, *offered(app, signature=signature))
    assert load_client_config(tmp_path / "client").approved == {"study": content_hash(app)}


def test_signatures_are_of_one_app_one_content_and_one_time(tmp_path: Path) -> None:
    """A signature of another app, of other content, tampered with, or of an older version."""
    author = Author(tmp_path)
    old = make_app(tmp_path / "old")
    older = author.sign(old, now_s=100)
    new = make_app(tmp_path / "new", "x = 2\n")
    newer = author.sign(new, now_s=200)
    offers = owner_of(tmp_path / "client", f'auto_approve = ["{author.public}"]')
    waits(offers, *offered(new, signature=older))  # other content
    waits(offers, *offered(new, "another", signature=newer))  # another name
    later = AppSignature.from_bytes(newer)
    forged = AppSignature(key=later.key, signed_at_s=999, signature=later.signature)
    waits(offers, *offered(new, signature=forged.to_bytes()))  # another time
    for nonsense in (b"{}", b"\xff", b"[" * 4000, newer + b"x" * 4096):
        waits(offers, *offered(new, signature=nonsense))
    assert load_client_config(tmp_path / "client").apps == {}
    give(offers, *offered(new, signature=newer))
    with pytest.raises(RefusedError, match="has signed a newer version"):
        give(offers, *offered(old, signature=older))
    assert Owner(tmp_path / "client", content_hash).sha256("study") == content_hash(new)


def test_keys(tmp_path: Path) -> None:
    """A key is its owner's alone, and not written over; a stale signature is not submitted."""
    author = Author(tmp_path)
    assert author.key_file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(IdentityError, match="not written over"):
        make_author_key(author.key_file)
    app = make_app(tmp_path / "new")
    author.sign(app)
    with pytest.raises(IdentityError, match="sign it anew"):
        signature_beside(app, name="study", sha256="0" * 64)
    (app / SIGNATURE_FILE).unlink()
    assert signature_beside(app, name="study", sha256="0" * 64) == b""
    for wrong in ("ed25519:00", "x", 3):
        text = f'"{wrong}"' if isinstance(wrong, str) else str(wrong)
        (tmp_path / "client.toml").write_text(f"[apps]\nauto_approve = [{text}]\n")
        with pytest.raises(ConfigError, match=r"apps\.auto_approve must be a list of authors"):
            load_client_config(tmp_path)


def test_a_killed_approval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stops, nothing is half installed, and the version can be had again."""
    app, data = offered(make_app(tmp_path / "new"))
    for step in ("make_folder", "sync_folder", "write_file"):
        shutil.rmtree(tmp_path / "client", ignore_errors=True)
        offers = owner_of(tmp_path / "client")
        waits(offers, app, data)

        def die(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(offers_module, step, die)
            with pytest.raises(KeyboardInterrupt):
                offers.approve("study", app.sha256)
        assert load_client_config(tmp_path / "client").apps == {}
        try:
            offers.approve("study", app.sha256)
        except AppError:
            waits(offers, app, data)
            offers.approve("study", app.sha256)
        assert Owner(tmp_path / "client", content_hash).sha256("study") == app.sha256


def test_the_agent_runs_it_once_it_is_approved(client: Client) -> None:
    """It answers that the owner's approval is awaited; after that, it executes the app."""
    name = "counting"

    async def scenario() -> tuple[str, pb.Reply]:
        offer, data = offered(client.app, name)
        blob_path(client.fleet.blobs, offer.archive.id).write_bytes(data)
        (client.directory / "client.toml").write_text("[data]\nindex = 0\ncount = 1\n")
        async with client.connected():
            first = client.instruction("1-a-0", values=4)
            first.app.CopyFrom(offer)
            client.fleet.send(first)
            refused = (await client.fleet.reply("1-a-0")).refused
            Offers(client.directory).approve(name, offer.sha256)
            second = client.instruction("1-a-1", values=4)
            second.app.CopyFrom(offer)
            client.fleet.send(second)
            return refused, await client.fleet.reply("1-a-1")

    refused, reply = asyncio.run(scenario())
    assert "waits for the approval of this site's owner" in refused
    assert reply.HasField("envelope") and not reply.envelope.HasField("error"), reply
    assert len(client.fleet.downloads) == 1
    assert (client.directory / "approved" / name).is_dir()
