"""What is shipped is what is here: packages, files, generated code, versions."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import meadow

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOT_PACKAGES = {"benchmarks", "build", "deploy", "dist", "docs", "examples", "runs", "tests"}
ROOT_MODULES = {"__init__", "__main__", "errors", "task"}
GENERATED = ("fleet_pb2.py", "fleet_pb2.pyi", "fleet_pb2_grpc.py")


def package_folders() -> set[Path]:
    """Return the folders of the package, relative to the root, that hold Python files."""
    files = (path.relative_to(ROOT) for path in ROOT.glob("*/**/*.py"))
    return {
        file.parent
        for file in files
        if not file.parts[0].startswith(".") and file.parts[0] not in NOT_PACKAGES
    }


def test_every_folder_is_a_listed_package() -> None:
    """A sub-package that is not listed would be missing from the wheel without a word."""
    folders = {".".join(("meadow", *folder.parts)) for folder in package_folders()}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == {"meadow", *folders}


def test_every_folder_has_an_init() -> None:
    """Every package says in one line what it is."""
    for folder in package_folders():
        text = (ROOT / folder / "__init__.py").read_text()
        assert text.startswith('"""'), folder


def test_every_root_module_is_meant_to_be_there() -> None:
    """Every Python file of the root lands in the wheel, so a stray script would too."""
    assert {path.stem for path in ROOT.glob("*.py")} == ROOT_MODULES


def test_what_benchmarks_and_examples_import_is_there() -> None:
    """They are run by hand: a name that was moved would be missed much later."""
    missing = []
    for folder in ("benchmarks", "docs", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ImportFrom) or node.level:
                    continue
                if (node.module or "").partition(".")[0] != "meadow":
                    continue
                module = importlib.import_module(node.module or "")
                missing += [
                    f"{path.relative_to(ROOT)}: {node.module} has no {each.name}"
                    for each in node.names
                    if not hasattr(module, each.name)
                    and not (
                        hasattr(module, "__path__")
                        and importlib.util.find_spec(f"{node.module}.{each.name}")
                    )
                ]
    assert missing == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Build the wheel from a copy, without network, and return the names of its files."""
    copy = tmp_path_factory.mktemp("source") / "checkout"
    hidden = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "runs", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=hidden, symlinks=True)
    build = "import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-c", build, str(copy.parent)],
        cwd=copy,
        check=True,
        capture_output=True,
        timeout=300,
    )
    (built,) = copy.parent.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


def test_wheel_has_the_package_and_nothing_else(wheel: set[str]) -> None:
    """The wheel holds every module once, the proto, the type marker, and no test."""
    files = {name for name in wheel if ".dist-info/" not in name}
    modules = {path.relative_to(ROOT) for path in ROOT.glob("*.py")}
    for folder in package_folders():
        modules |= {path.relative_to(ROOT) for path in (ROOT / folder).glob("*.py")}
    extra = {"meadow/py.typed", "meadow/transport/fleet.proto", "meadow/transport/fleet_pb2.pyi"}
    assert files == {f"meadow/{path.as_posix()}" for path in modules} | extra


def test_wheel_has_the_licence_and_the_command(wheel: set[str]) -> None:
    """The licence travels along, and an entry point makes the command."""
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    assert any(name.endswith("entry_points.txt") for name in wheel)
    assert PROJECT["project"]["scripts"] == {"meadow": "meadow.cli.main:main"}


def test_version_is_said_once_in_two_places() -> None:
    """The package and its distribution agree, and the changelog knows the version."""
    version = PROJECT["project"]["version"]
    assert meadow.__version__ == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_generated_code_is_current(tmp_path: Path) -> None:
    """The committed protobuf code is what `make proto` makes of the proto."""
    inputs = tmp_path / "in" / "meadow" / "transport"
    inputs.mkdir(parents=True)
    shutil.copy(ROOT / "transport" / "fleet.proto", inputs)
    out = tmp_path / "out"
    out.mkdir()
    flags = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(tmp_path / "in"), *flags]
    subprocess.run([*command, "meadow/transport/fleet.proto"], check=True, timeout=120)
    for name in GENERATED:
        made = (out / "meadow" / "transport" / name).read_text()
        assert made == (ROOT / "transport" / name).read_text(), f"{name}: run make proto"


@pytest.mark.parametrize("name", ["configuration", "algorithms", "security", "flower"])
def test_pages_made_from_the_code_are_current(name: str) -> None:
    """The pages list the keys, the algorithms and the limits that the code has."""
    page = runpy.run_path(str(ROOT / "docs" / f"{name}.py"))["page"]()
    assert page == (ROOT / "docs" / f"{name}.md").read_text(), "run make docs"


def test_each_limit_names_a_test_that_exists() -> None:
    """docs/security.md names a test for each limit, and the test is there."""
    for limit in runpy.run_path(str(ROOT / "docs" / "security.py"))["limits"]():
        file, _, name = limit.test.partition("::")
        code = (ROOT / "tests" / file).read_text()
        assert re.search(rf"^ *(async )?def {name}\(", code, re.MULTILINE), limit.test


def limit_constants() -> dict[str, Path]:
    """Return the constants that are named like limits, as `server.daemon.spool:BLOBS_PER_REPLY_MAX`."""
    found = {}
    for package in (
        "client",
        "compression",
        "pages",
        "privacy",
        "run",
        "server",
        "training",
        "transport",
    ):
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for node in ast.parse(path.read_text()).body:
                targets = node.targets if isinstance(node, ast.Assign) else []
                targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
                for name in (each for target in targets for each in ast.walk(target)):
                    if isinstance(name, ast.Name) and re.search(
                        r"(_(MAX|S|MS|KEPT)|^BURST)$", name.id
                    ):
                        found[f"{module}:{name.id}"] = path
    return found


def test_each_limit_is_listed() -> None:
    """In a table of docs/security.md, or among those of which it says why they are in none."""
    page = runpy.run_path(str(ROOT / "docs" / "security.py"))
    listed = [limit.place for limit in page["limits"]()]
    besides = [place for places in page["BESIDES"].values() for place in places.split()]
    assert len({*listed, *besides}) == len(listed) + len(besides), "one is listed twice"
    there = limit_constants()
    assert sorted(there.keys() - {*listed, *besides}) == [], (
        "say what holds them, or why nothing has to"
    )
    assert sorted({*besides} - there.keys()) == [], "they are there no more"


def distribution(requirement: str) -> str:
    """Return the normalised name in a requirement."""
    name = re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints() -> dict[str, str]:
    """Return the pinned versions by normalised name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {distribution(name): version for name, version in pins}


def test_every_dependency_is_pinned() -> None:
    """make installs a set that was tested; the simulation extra's ray is its user's choice."""
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *extras["dev"],
        *extras["examples"],
        *extras["data"],
        *extras["plots"],
        *extras["tracing"],
    ]
    assert {distribution(each) for each in wanted} <= set(constraints())


def test_constraints_name_no_machine() -> None:
    """Pins are plain versions, without local builds or paths."""
    for name, version in constraints().items():
        assert re.fullmatch(r"[0-9][0-9A-Za-z.]*", version), name
