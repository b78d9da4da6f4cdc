"""App folders, which a run executes: a folder with meadow.toml, or a plain Flower app.

An app is identified by the hash of its content, so that a data owner can allow exactly one
version of it. Nothing in a folder or an archive may point outside of it.
"""

from __future__ import annotations

import importlib
import io
import os
import stat
import sys
import traceback
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ..config.app_options import make_task
from ..config.load import FILE_NAME, config_to_toml, load_config
from ..config.schema.sources import given_by_environment
from ..config.sections.model import Config
from ..errors import AppError, MeadowError
from ..task import AlgorithmNamed, Task
from .flower_app import FlowerApp, read_flower_app
from .missing_imports import remedy_of

if TYPE_CHECKING:
    from ..config.own_algorithm import OwnAlgorithm

__all__ = ["APP_BYTES_MAX", "APP_FILES_MAX", "App", "content_hash", "list_files", "pack", "unpack"]

APP_FILES_MAX = 2_000
APP_BYTES_MAX = 64 << 20
_SKIPPED = frozenset({"__pycache__", "runs"})
_loaded_folders: set[Path] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """An app folder that was read and checked; its code is not loaded yet.

    Exactly one of `config` (a Meadow app) and `flower` (a plain Flower app) is set.
    """

    folder: Path
    name: str
    sha256: str
    """Of the content, as `content_hash` gives it."""
    config: Config | None = None
    flower: FlowerApp | None = None
    task: Task | None = None
    """Of a run that was begun from Python, with a task that no folder holds."""
    settings: tuple[str, ...] = field(default=())
    """What the environment and the overrides say, as overrides ("run.rounds=5"): in another
    environment they give the same `config` or `flower`."""

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        overrides: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> App:
        """Read an app folder.

        Raises:
            AppError: it is no app, or holds what an app may not hold.
            ConfigError: its configuration, or an override, is wrong.
        """
        path = Path(folder).resolve()
        if not path.is_dir():
            raise AppError(f"{folder} is not a folder; an app is a folder with {FILE_NAME}")
        config, flower, settings = None, None, tuple(overrides)
        if (path / FILE_NAME).is_file():
            environment = os.environ if environ is None else environ
            config = load_config(path / FILE_NAME, environ=environment, overrides=overrides)
            given = given_by_environment(Config, environment).items()
            settings = (*(f"{key}={said.value}" for key, said in given), *settings)
        elif (path / "pyproject.toml").is_file():
            flower = read_flower_app(path / "pyproject.toml", overrides=overrides)
        else:
            raise AppError(
                f"{folder} is no app: it has neither {FILE_NAME} nor a pyproject.toml with "
                "[tool.flwr.app]; `meadow new NAME` makes one"
            )
        return cls(
            folder=path,
            name=flower.name if flower else path.name,
            sha256=content_hash(path),
            config=config,
            flower=flower,
            settings=settings,
        )

    @classmethod
    def of_task(cls, task: Task, config: Config) -> App:
        """Return the app of a task that was made in this process, under a configuration.

        Its hash is of the configuration and the algorithm's name: what is typed into a notebook
        has no files to hash.
        """
        name = config.strategy.name if config.algorithm is None else config.algorithm.name
        app = cls(folder=Path.cwd(), name=name, sha256="", config=config, task=task)
        app = app.with_own_code()
        assert app.config is not None
        content = f"{config_to_toml(app.config)}# {name}\n".encode()
        return replace(app, name=name.rpartition(":")[2], sha256=sha256(content).hexdigest())

    def load_task(self, options: Mapping[str, Any] | None = None) -> Task:
        """Import a Meadow app's task, or make it with the free keys under [app].

        `options` are others than the configuration's.

        Raises:
            AppError: the code does not load, or is no `meadow.Task`.
            ConfigError: the free keys are not what the app's function takes.
        """
        if self.config is None:
            raise AppError(f"{self.name} is a Flower app; it has no task")
        own = self._own_algorithm(self.config)
        if self.task is not None:
            return replace(self.task, algorithm=own)
        reference = self.config.app.task
        found = self.load_object(reference)
        if options is None:
            options = self.config.app.options
        try:
            task = make_task(found, options, reference=reference, where=str(self.config.source))
        except MeadowError:
            raise
        except Exception as error:  # the app's own function
            raise AppError(f"{self.folder}: {reference} failed: {self.explain(error)}") from error
        return task if own is None else replace(task, algorithm=own)

    @property
    def only_here(self) -> str:
        """Which part of the app exists only in this process, so that other processes cannot load it."""
        if self.task is not None:
            return "task"
        made = self.config is not None and self.config.algorithm is not None
        if made and self.config is not None and not self.config.strategy.is_own:
            return "algorithm" if self.config.algorithm.client_is_an_object else ""
        return ""

    def with_own_code(self) -> App:
        """Return the app with the algorithm and the functions of its own that its configuration names:
        the builder's arguments are checked, and their defaults are in the configuration.

        Raises:
            AppError: the code does not load, or is no builder or function.
            ConfigError: an argument is wrong, or the algorithm does not go with another section.
        """
        config = self.config
        if config is not None and config.algorithm is not None:
            from ..config.own_algorithm import of_this_process

            return replace(self, config=of_this_process(config))._with_functions()
        if config is None or not config.strategy.is_own:
            return self._with_functions()
        own = self._load_algorithm(config)
        try:
            return replace(self, config=own.resolved(config))._with_functions()
        except MeadowError:
            raise
        except Exception as error:  # the app's own function
            said = self.explain(error)
            raise AppError(f"{self.folder}: {own.reference} failed: {said}") from error

    def _own_algorithm(self, config: Config) -> AlgorithmNamed | None:
        """Return the function that builds the client's half of the app's own algorithm, if it has one."""
        if config.strategy.is_own:
            return self._load_algorithm(config).named
        if config.algorithm is not None and config.algorithm.client_is_an_object:
            return lambda reference, arguments: config.algorithm
        return None

    def _load_algorithm(self, config: Config) -> OwnAlgorithm:
        from ..config.own_algorithm import OwnAlgorithm  # imports Flower

        reference = config.strategy.name
        where = str(config.source or self.folder)
        return OwnAlgorithm.of(self.load_object(reference), reference=reference, where=where)

    def _with_functions(self) -> App:
        """Return the app with the functions of its own that settings name."""
        from ..config.sections.own_functions import OWN_FUNCTIONS, references_in

        if self.config is None:
            return self
        functions = {}
        for key, reference in references_in(self.config).items():
            functions[key] = found = self.load_object(reference)
            if not callable(found):
                raise AppError(
                    f"{self.folder}: {key} = {reference!r} is a {type(found).__name__}; name a function "
                    f"that {OWN_FUNCTIONS[key]}"
                )
        return replace(self, config=replace(self.config, functions=functions))

    def load_object(self, reference: str) -> Any:
        """Import "module:name" from the app's folder, or as this process imports it where the task
        was made in Python.

        Raises:
            AppError: the module or the name is not there, or importing it fails.
        """
        module_name, _, attribute = reference.partition(":")
        if self.task is None:
            _make_importable(self.folder)
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # an app may raise anything while it is imported
            raise AppError(
                f"{self.folder}: importing {module_name!r} failed: {self.explain(error)}"
            ) from error
        try:
            return getattr(module, attribute)
        except AttributeError:
            raise AppError(f"{self.folder}: {module_name}.py has no {attribute!r}") from None

    def explain(self, error: BaseException) -> str:
        """Return one line about an error in the app's code, with its place in the app."""
        if isinstance(error, MeadowError):
            return str(error)
        text = " ".join(traceback.format_exception_only(error)[-1].split())
        remedy = remedy_of(error)
        places = [
            (each.filename, each.lineno) for each in traceback.extract_tb(error.__traceback__)
        ]
        if isinstance(error, SyntaxError):
            places.append((error.filename or "", error.lineno))
        for file, line in reversed(places):
            if self.folder in Path(file).parents:
                return f"{text} ({Path(file).relative_to(self.folder)}, line {line}){remedy}"
        return text + remedy


def _make_importable(folder: Path) -> None:
    """Make the folder's modules importable, and drop other apps' modules of the same names."""
    others = _loaded_folders - {folder}
    inside = tuple(f"{other}{os.sep}" for other in others)
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(inside):
            del sys.modules[name]
    for other in others:
        if str(other) in sys.path:
            sys.path.remove(str(other))
    _loaded_folders.difference_update(others)
    _loaded_folders.add(folder)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def list_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield an app's files by relative path, sorted; checks kinds, count and size.

    Raises:
        AppError: the folder holds links, or too much.
    """
    found: list[tuple[str, Path]] = []
    total = 0
    for root, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if not _is_skipped(name))
        for name in [*names, *files]:
            path = Path(root, name)
            if _is_skipped(name):
                continue
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                continue
            if not stat.S_ISREG(mode):
                raise AppError(f"{path} is a link or no plain file; an app may not hold one")
            found.append((path.relative_to(folder).as_posix(), path))
            total += path.stat().st_size
            if len(found) > APP_FILES_MAX or total > APP_BYTES_MAX:
                raise AppError(
                    f"{folder} exceeds {APP_FILES_MAX} files or {APP_BYTES_MAX >> 20} MiB; "
                    "keep data outside of the app's folder"
                )
    yield from sorted(found)


def _is_skipped(*parts: str) -> bool:
    """Whether a path is excluded from an app by the name of one of its parts."""
    return any(
        part in _SKIPPED or part.startswith(".") or part.endswith((".pyc", ".egg-info"))
        for part in parts
    )


def content_hash(folder: Path) -> str:
    """Return the SHA-256 (hex) over the sorted paths and contents of an app's files.

    Hidden files, __pycache__ and runs/ do not count.

    Raises:
        AppError: the folder holds links, or too much.
    """
    digest = sha256()
    for name, path in list_files(folder):
        content = path.read_bytes()
        encoded = name.encode()
        for part in (encoded, content):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()


def pack(folder: Path) -> bytes:
    """Return an app's files as a zip archive, the same bytes for the same content.

    Raises:
        AppError: as `content_hash`.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in list_files(folder):
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            archive.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


ENTRY_MARK = b"PK\x01\x02"
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    EOFError,
    RuntimeError,
    ValueError,
)


def unpack(data: bytes, folder: Path) -> None:
    """Write an archive's files into a new folder; they are durable on return.

    Raises:
        AppError: it is no zip archive, names a path outside of the folder, holds links or files
            that the app's hash would not cover, or grows beyond the bounds; nothing of it is then
            kept outside of `folder`.
    """
    if data.count(ENTRY_MARK) > 10 * APP_FILES_MAX:  # before each of them becomes an object
        raise AppError(f"the app's archive exceeds {APP_FILES_MAX} files")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if len(entries) > APP_FILES_MAX or sum(e.file_size for e in entries) > APP_BYTES_MAX:
                raise AppError(
                    f"the app's archive exceeds {APP_FILES_MAX} files or "
                    f"{APP_BYTES_MAX >> 20} MiB unpacked"
                )
            folder.mkdir(parents=True)
            left = APP_BYTES_MAX
            for entry in entries:
                left -= _unpack_one(archive, entry, folder, left)
            _sync_folders(folder)
    except UNREADABLE as error:
        raise AppError(f"the app's archive cannot be read: {error}"[:300]) from None
    except OSError as error:
        raise AppError(f"the app's archive cannot be unpacked: {error}"[:300]) from None


def _unpack_one(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path, left: int) -> int:
    path = PurePosixPath(entry.filename)
    mode = entry.external_attr >> 16
    plain = not stat.S_IFMT(mode) or stat.S_ISREG(mode)
    suspicious = any(mark in entry.filename for mark in "\\:") or _is_skipped(*path.parts)
    plain = plain and entry.filename.isprintable() and path.parts != ()
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise AppError(f"the app's archive is compressed by method {entry.compress_type}, not 8")
    if path.is_absolute() or ".." in path.parts or suspicious or not plain or entry.is_dir():
        raise AppError(f"the app's archive names {entry.filename[:200]!r}, which is no plain file")
    target = folder.joinpath(*path.parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as source, target.open("xb") as file:
        content = source.read(left + 1)  # a header may lie about the size
        if len(content) > left:
            raise AppError(f"the app's archive exceeds {APP_BYTES_MAX >> 20} MiB unpacked")
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return len(content)


def _sync_folders(folder: Path) -> None:
    """Make the names of an app's files durable, and its own."""
    for root in [*(Path(name) for name, _, _ in os.walk(folder)), folder.parent]:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
