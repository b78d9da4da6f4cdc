"""App folders: what is an app, what its hash covers, and archives that cannot reach outside."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import meadow
from meadow.apps import folder as apps
from meadow.apps.folder import App, content_hash, pack, unpack
from meadow.apps.missing_imports import remedy_of
from meadow.errors import AppError, ConfigError

TASK = """
import meadow
from helper import VALUE

task = meadow.Task(model=None, loss=None, client_data=lambda site: VALUE)
"""


def make(folder: Path, value: int = 1) -> Path:
    folder.mkdir()
    (folder / "meadow.toml").write_text('[app]\ntask = "task:task"\n[run]\nrounds = 4\n')
    (folder / "task.py").write_text(TASK)
    (folder / "helper.py").write_text(f"VALUE = {value}\n")
    (folder / "data").mkdir()
    (folder / "data" / "classes.txt").write_text("cat\ndog\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small Meadow app."""
    return make(tmp_path / "my_app")


def test_a_meadow_app_is_loaded(folder: Path) -> None:
    """Its configuration is read at once, its code when it is asked for."""
    app = App.load(folder, overrides=["run.rounds=7"])
    assert (app.name, app.flower, app.settings) == ("my_app", None, ("run.rounds=7",))
    assert app.config is not None and app.config.run.rounds == 7
    task = app.load_task()
    assert isinstance(task, meadow.Task)
    assert task.client_data(meadow.Site(index=0, count=1)) == 1  # type: ignore[comparison-overlap]


def test_the_environment_becomes_settings(folder: Path) -> None:
    """What variables said goes along to wherever the app runs; overrides lie over it."""
    environ = {"MEADOW_RUN__ROUNDS": "9", "MEADOW_RUN__SEED": "3", "MEADOW_TOKEN": "secret"}
    app = App.load(folder, overrides=["run.seed=5"], environ=environ)
    assert app.settings == ("run.rounds=9", "run.seed=3", "run.seed=5")
    assert App.load(folder, overrides=app.settings, environ={}).config == app.config


def test_two_apps_do_not_share_modules(folder: Path, tmp_path: Path) -> None:
    """The second app's task and helper are its own, although they have the same names."""
    other = make(tmp_path / "other", value=2)
    for path, value in ((folder, 1), (other, 2), (folder, 1)):
        task = App.load(path).load_task()
        assert task.client_data(meadow.Site(index=0, count=1)) == value  # type: ignore[comparison-overlap]


def test_a_flower_app_is_loaded(tmp_path: Path) -> None:
    """The components and the run config of [tool.flwr.app] are read, with overrides."""
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "plain"\n[tool.flwr.app.components]\n'
        'serverapp = "s:app"\nclientapp = "c:app"\n'
        '[tool.flwr.app.config]\nrounds = 3\nmodel.name = "cnn"\nrate = 0.5\n'
    )
    app = App.load(tmp_path, overrides=["rounds=5", "rate=1"])
    assert app.config is None and app.flower is not None
    assert (app.name, app.flower.server_app, app.flower.client_app) == ("plain", "s:app", "c:app")
    assert dict(app.flower.run_config) == {"rounds": 5, "model.name": "cnn", "rate": 1.0}
    with pytest.raises(AppError, match="is a Flower app; it has no task"):
        app.load_task()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("round=5", "has no key 'round'; did you mean rounds"),
        ("rounds=five", "rounds must be of type int, got 'five'"),
        ("rounds", "has no value; write --set key=value"),
    ],
)
def test_wrong_overrides_of_a_flower_app(tmp_path: Path, override: str, sentence: str) -> None:
    """An override that the app would not notice is refused."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.flwr.app.components]\nserverapp = "s:app"\nclientapp = "c:app"\n'
        "[tool.flwr.app.config]\nrounds = 3\n"
    )
    with pytest.raises(ConfigError, match=sentence):
        App.load(tmp_path, overrides=[override])


BROKEN: dict[str, tuple[str, str]] = {
    "import": ("import nothing_like_it\n", "'nothing_like_it' installed, or misspelt"),
    "syntax": ("def f(:\n", r"SyntaxError: .*\(task.py, line 1\)"),
    "raises": ("x = 1\nraise RuntimeError('no GPU')\n", r"no GPU \(task.py, line 2\)"),
    "name": ("tusk = 1\n", "task.py has no 'task'"),
    "kind": ("task = {}\n", "is a dict, not a meadow.Task"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_code_that_does_not_load_says_why(folder: Path, kind: str) -> None:
    """The error names the folder, the module, the line and what is wrong."""
    code, sentence = BROKEN[kind]
    (folder / "task.py").write_text(code)
    with pytest.raises(AppError, match=sentence):
        App.load(folder).load_task()


def test_what_is_no_app_is_refused(tmp_path: Path) -> None:
    """A missing folder, a file and an empty folder are not apps, and the remedy is named."""
    with pytest.raises(AppError, match="is not a folder"):
        App.load(tmp_path / "nothing")
    with pytest.raises(AppError, match=r"is no app: .* `meadow new NAME` makes one"):
        App.load(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(ConfigError, match=r"has no \[tool.flwr.app\]"):
        App.load(tmp_path)


# ---------------------------------------------------------------- the hash


def _rename(folder: Path) -> None:
    (folder / "helper.py").rename(folder / "helpers.py")


def _move_a_byte(folder: Path) -> None:
    (folder / "a").write_text("xy")
    (folder / "b").write_text("z")


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda folder: (folder / "helper.py").write_text("VALUE = 3\n"),
    "a file more": lambda folder: (folder / "more.py").touch(),
    "a file less": lambda folder: (folder / "helper.py").unlink(),
    "another name": _rename,
    "deep inside": lambda folder: (folder / "data" / "classes.txt").write_text("cat\n"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_hash_covers_every_file(folder: Path, change: str) -> None:
    """Whatever changes in the app gives another hash."""
    before = content_hash(folder)
    CHANGES[change](folder)
    assert content_hash(folder) != before


def test_the_hash_covers_nothing_else(folder: Path, tmp_path: Path) -> None:
    """Caches, hidden files, runs, times and places do not count."""
    before = content_hash(folder)
    for name in ("__pycache__", "runs", ".git"):
        (folder / name).mkdir()
        (folder / name / "file").write_text("x")
    (folder / ".secret").write_text("x")
    (folder / "task.pyc").write_text("x")
    os.utime(folder / "task.py", (0, 0))
    assert content_hash(folder) == before == content_hash(make(tmp_path / "elsewhere"))
    assert len(before) == 64


def test_contents_do_not_run_together(tmp_path: Path) -> None:
    """A byte that moves from one file to the next changes the hash."""
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, texts in ((one, ("xy", "z")), (other, ("x", "yz"))):
        folder.mkdir()
        for name, text in zip("ab", texts, strict=True):
            (folder / name).write_text(text)
    assert content_hash(one) != content_hash(other)


def test_links_and_devices_are_refused(folder: Path, tmp_path: Path) -> None:
    """An app may not reach outside of its folder, nor wait for a pipe."""
    (tmp_path / "secret").write_text("x")
    for name, make_it in (
        ("file", lambda path: path.symlink_to(tmp_path / "secret")),
        ("folder", lambda path: path.symlink_to(tmp_path)),
        ("pipe", os.mkfifo),
    ):
        make_it(folder / name)
        with pytest.raises(AppError, match=f"{name} is a link or no plain file"):
            content_hash(folder)
        (folder / name).unlink()


def test_an_app_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many files, or too large ones, are refused with the bound and the remedy."""
    monkeypatch.setattr(apps, "APP_FILES_MAX", 4)
    content_hash(folder)
    (folder / "more").touch()
    with pytest.raises(AppError, match="exceeds 4 files or 64 MiB; keep data outside"):
        content_hash(folder)
    monkeypatch.setattr(apps, "APP_FILES_MAX", 9)
    monkeypatch.setattr(apps, "APP_BYTES_MAX", 50)
    with pytest.raises(AppError, match="exceeds"):
        pack(folder)


# ---------------------------------------------------------------- archives


def test_packing_and_unpacking_keep_the_hash(folder: Path, tmp_path: Path) -> None:
    """The archive depends on the content alone, and what comes out is the same app."""
    archive = pack(folder)
    os.utime(folder / "task.py", (0, 0))
    assert pack(folder) == archive
    unpack(archive, tmp_path / "out")
    assert content_hash(tmp_path / "out") == content_hash(folder)
    assert (tmp_path / "out" / "data" / "classes.txt").read_text() == "cat\ndog\n"


def archive_of(*entries: tuple[str, bytes, int]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data, mode in entries:
            info = zipfile.ZipInfo("placeholder")
            info.filename = name
            info.external_attr = mode << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


PLAIN = stat.S_IFREG | 0o644


@pytest.mark.parametrize(
    "name",
    [
        *("../out.py", "a/../../out.py", "/tmp/out.py", "..\\out.py", "C:out.py", "..", "a\\b"),
        *("dir/", ".hidden/code.py", "__pycache__/task.cpython-311.pyc", "task.pyc", "runs/x"),
    ],
)
def test_paths_that_no_app_has_are_refused(tmp_path: Path, name: str) -> None:
    """No entry of an archive writes outside of the folder, or what the hash does not cover."""
    with pytest.raises(AppError, match="which is no plain file"):
        unpack(archive_of((name, b"x", PLAIN)), tmp_path / "app")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_entries_that_are_no_files_are_refused(tmp_path: Path, kind: int) -> None:
    """A link in an archive would let the next entry write through it."""
    with pytest.raises(AppError, match="which is no plain file"):
        unpack(archive_of(("link", b"/etc/passwd", kind | 0o777)), tmp_path / "app")


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\x03\x04" + bytes(100)])
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    """Bytes that are not a zip archive raise our error."""
    with pytest.raises(AppError, match="cannot be read"):
        unpack(data, tmp_path / "app")


def test_a_cut_archive_is_refused(folder: Path, tmp_path: Path) -> None:
    """An upload that lost its end, wherever, is never unpacked."""
    archive = pack(folder)
    for end in range(0, len(archive), 37):
        with pytest.raises(AppError):
            unpack(archive[:end], tmp_path / f"cut-{end}")


def test_a_flipped_byte_never_changes_a_file(folder: Path, tmp_path: Path) -> None:
    """An archive with a flipped byte among its files is refused, unless it does not matter."""
    archive, expected = pack(folder), content_hash(folder)
    for place in range(0, archive.index(b"PK\x01\x02"), 2):
        flipped = bytearray(archive)
        flipped[place] ^= 0x41
        target = tmp_path / f"flipped-{place}"
        try:
            unpack(bytes(flipped), target)
        except AppError:
            continue
        assert content_hash(target) == expected, place


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What unpacks to more than the bound is refused, whether or not its header admits it."""
    monkeypatch.setattr(apps, "APP_BYTES_MAX", 1 << 20)
    bomb = archive_of(("zeros", bytes(2 << 20), PLAIN))
    assert len(bomb) < 1 << 14
    with pytest.raises(AppError, match="exceeds 2000 files or 1 MiB"):
        unpack(bomb, tmp_path / "admitted")
    size = (2 << 20).to_bytes(4, "little")
    liar = bomb.replace(size, (1 << 10).to_bytes(4, "little"))
    with pytest.raises(AppError):
        unpack(liar, tmp_path / "lied")
    written = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert written <= 1 << 20
    many = archive_of(*((f"f{number}", b"", PLAIN) for number in range(2001)))
    with pytest.raises(AppError, match="exceeds 2000 files"):
        unpack(many, tmp_path / "many")


def test_an_entry_twice_is_refused(tmp_path: Path) -> None:
    """The second of two entries of one name does not replace the first."""
    with pytest.raises(AppError):
        unpack(archive_of(("a", b"1", PLAIN), ("a", b"2", PLAIN)), tmp_path / "app")


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("import sklearnn", "pip install sklearnn"),
        ("from flwr.server import Nothing", "flwr 1."),
        ("import flwr\nflwr.server.start_fleet", "was written for another version"),
        ("from flwr.server.driver import Driver", "was written for another version"),
        ("import cv2_missing.part", "'cv2_missing' installed"),
    ],
)
def test_a_missing_import_says_what_to_do(tmp_path: Path, line: str, remedy: str) -> None:
    """The sentence names the package that is wanted, and for Flower's own the version that is here."""
    (tmp_path / "meadow.toml").write_text('[app]\ntask = "wanting:task"\n')
    (tmp_path / "wanting.py").write_text(f"{line}\n")
    with pytest.raises(AppError, match=r"wanting\.py, line [12]") as caught:
        App.load(tmp_path, environ={}).load_object("wanting:task")
    assert remedy in str(caught.value)


def test_a_missing_package_of_an_extra_names_the_extra() -> None:
    """What one of Meadow's extras installs is installed by it."""
    said = remedy_of(ModuleNotFoundError("no", name="sklearn.linear_model"))
    assert "pip install 'meadow-fl[examples]'" in said
    assert remedy_of(ValueError("no")) == ""
