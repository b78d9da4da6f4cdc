"""The walls between the parts: who may import whom, and what nobody may use."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import meadow

ROOT = Path(__file__).parent.parent
NO_PACKAGES = {"benchmarks", "build", "dist", "docs", "examples", "runs", "tests"}
FOLDERS = tuple(
    sorted(
        path.parent.name
        for path in ROOT.glob("*/__init__.py")
        if path.parent.name not in NO_PACKAGES
    )
)

LAYERS: list[set[str]] = [
    {"deprecated", "errors"},
    {"datasets", "flower", "machine", "partitioning"},
    {"randomness", "transport"},
    {"strategies", "task"},
    {"compression", "flower_apps", "privacy"},
    {"config"},
    {"apps"},
    {"training"},
    {"reports"},
    {"pages"},
    {"client"},
    {"tracking"},
    {"run"},
    {"server", "simulations", "sweeps"},
    {"relay"},
    {"cli"},
    {"api"},
    {"__init__", "__main__"},
]
RANKS = {unit: rank for rank, units in enumerate(LAYERS) for unit in units}
STRANGERS = ({"client", "server"}, {"server", "simulations"}, {"task", "strategies"})

PURE = ("strategies", "privacy")
IMPURE = {
    "datetime",
    "grpc",
    "io",
    "logging",
    "mmap",
    "os",
    "pathlib",
    "random",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
    "time",
    "torch",
}
CLOCK_IS_HANDED_IN = {
    "strategies.rounds.adapter": {"time"},
    "strategies.rounds.cohort": {"time"},
    "privacy.secagg.client.app": {"time"},
    "privacy.secagg.client.introduction": {"time"},
}
"""Rounds and messages have times; the rounds' clock is an argument whose default they must name."""

UNSAFE_MODULES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "torch.load", "torch.save", "joblib.load"}
GENERATED = "_pb2"


def module_name(path: Path) -> str:
    """Return a file's dotted name inside the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def sources() -> list[Path]:
    """Return every hand-written module of the package."""
    paths = [
        *ROOT.glob("*.py"),
        *(path for name in FOLDERS for path in (ROOT / name).rglob("*.py")),
    ]
    return sorted(path for path in paths if GENERATED not in path.name)


MODULES = {module_name(path): path for path in sources()}


def unit_of(module: str) -> str:
    """Return the part of the layering that a module belongs to."""
    return module if module in RANKS else module.partition(".")[0]


def parse(module: str) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse(MODULES[module].read_text())


def imports(module: str) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of all imports, those of the package starting with a dot."""
    package = MODULES[module].relative_to(ROOT).parent.parts
    for node in ast.walk(parse(module)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.ImportFrom):
            home = package[: len(package) - node.level + 1]
            base = ".".join([*home, *([node.module] if node.module else [])])
            for alias in node.names:
                if alias.name == "__version__":
                    continue  # the face says it before it loads anything
                inner = f"{base}.{alias.name}".lstrip(".")
                yield node.lineno, f".{inner if inner in MODULES else base}"


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_a_layer(module: str) -> None:
    """A new module or folder is placed in the layering before it lands."""
    assert unit_of(module) in RANKS, f"add {module} to LAYERS"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str) -> None:
    """A module imports only its own part and lower ones."""
    here = unit_of(module)
    for line, name in imports(module):
        if not name.startswith("."):
            continue
        there = unit_of(name[1:] or "__init__")
        at = f"{MODULES[module]}:{line} imports {there}"
        assert there in RANKS, f"{at}, which has no layer or does not exist"
        assert RANKS[there] <= RANKS[here], f"{at}, which is above {here}"
        strangers = any({here, there} == pair for pair in STRANGERS)
        assert not strangers, f"{at}; {here} and {there} never import each other"


@pytest.mark.parametrize("module", MODULES)
def test_imports_inside_are_relative(module: str) -> None:
    """The package does not name itself, so it works under any checkout."""
    for line, name in imports(module):
        top = name.partition(".")[0]
        assert top not in {"meadow", *FOLDERS}, f"{MODULES[module]}:{line} imports {name}"


def test_the_partition_is_a_leaf() -> None:
    """A site asks for its share of a data set with NumPy alone."""
    for leaf in (name for name in MODULES if name.startswith("partitioning")):
        names = {name for _, name in imports(leaf)}
        outside = {name.partition(".")[0] for name in names} - {""}
        assert outside - set(sys.stdlib_module_names) <= {"numpy"}, leaf
        inside = {name[1:] for name in names if name[0] == "."} - {"errors"}
        assert all(name.startswith("partitioning") for name in inside), leaf


ROOT_MODULES = {"__init__", "__main__", "errors", "task"}


def test_the_root_is_the_face() -> None:
    """Every mechanism has a room: the root holds what users import, and the commands' door."""
    assert {name for name in MODULES if "." not in name} - set(FOLDERS) == ROOT_MODULES


def folder_of(module: str, depth: int) -> str:
    """Return the folder that a module lies in, as deep as asked; a module of the root is its own."""
    folders = MODULES[module].relative_to(ROOT).parent.parts[:depth]
    return "/".join(folders) or module


def circles(edges: set[tuple[str, str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node (Tarjan, SIAM 1972)."""
    after: dict[str, list[str]] = {}
    for here, there in sorted(edges):
        after.setdefault(here, []).append(there)
        after.setdefault(there, [])
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in after[node]:
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in after:
        if node not in number:
            visit(node)
    return found


def test_circles_are_found() -> None:
    """The search knows a circle when it sees one."""
    edges = {("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("e", "a"), ("d", "f")}
    assert circles(edges) == [["b", "c"]]


@pytest.mark.parametrize("depth", [1, 2, None])
def test_no_circles(depth: int | None) -> None:
    """Neither folders nor files import each other in circles, for types or at a call included."""
    edges = set()
    for module in MODULES:
        for _, name in imports(module):
            if name[0] == "." and (there := name[1:] or "__init__") in MODULES:
                nodes = (module, there)
                if depth is not None:
                    nodes = (folder_of(module, depth), folder_of(there, depth))
                if nodes[0] != nodes[1]:
                    edges.add(nodes)
    assert circles(edges) == []


def test_class_names_are_one() -> None:
    """A name means one class: nobody has to ask which."""
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.walk(parse(module)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


LINES_MIN = 40
DOORS = {
    "__main__": "the command",
    "cli.admin": "the options of commands that speak with a server",
    "cli.plugins": "a command",
    "config.rules.combinations": "all rules that span sections, in order",
    "datasets.arrays": "an adapter",
    "datasets.extras": "what several adapters need",
    "privacy.dp.mechanisms.sampling": "a mechanism",
    "privacy.secagg.protocol.steps": "the steps of the protocol",
    "randomness.entropy": "a source of random numbers",
    "server.daemon.offer": "what a run's instructions offer",
    "simulations.executors.vectorized.step_threads": "a rule of its own",
    "strategies.algorithms.catalogue": "the list of Meadow's own algorithms",
    "strategies.algorithms.ditto": "an algorithm",
    "strategies.algorithms.fedbn": "an algorithm",
    "strategies.algorithms.fedprox": "an algorithm",
    "strategies.rounds.private_rounds": "what rounds and privacy agree on",
    "machine.power": "what the system says of it",
    "machine.json_log": "the form of log lines for programs",
    "transport.protocol": "the number of the wire's protocol",
    "tracking.tracker": "what every tracker is asked",
}
"""Files of fewer lines, and what somebody looks for who looks for them."""


def test_small_files_are_doors() -> None:
    """A file is worth a name only where somebody would look for it."""
    small = {
        name
        for name, path in MODULES.items()
        if path.name != "__init__.py" and len(path.read_text().splitlines()) < LINES_MIN
    } | ({"__main__"} & set(MODULES))
    assert small == set(DOORS)


TESTS = ROOT / "tests"
TESTS_OF_THE_WHOLE = {"documentation", "layering", "packaging", "project", "site", "task"}
TESTS_ELSEWHERE = {
    "accelerator": "everything that trains, on an accelerator that is strict",
    "deploy": "what deploy/ has: units, images",
    "examples": "the programs of examples/",
    "faults": "attacks on a live server, by what is tried",
    "federation": "real processes, from the command line to the model",
    "fuzz": "inputs that nobody sends, to every decoder",
    "interop": "the same apps under Flower itself",
    "shared": "what tests of several folders import; no tests",
    "simulations/apps": "apps that tests run",
    "training/parallel/scans": "an app that tests run",
}
"""Folders of tests that are no folders of the package, and what is in them."""


def test_tests_mirror_folders() -> None:
    """The tests of a folder are in the folder of that name in tests/, and each room has some."""
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("*.py")} - {Path()}
    homeless = {
        str(folder)
        for folder in folders
        if not (ROOT / folder / "__init__.py").is_file()
        and not any(folder.is_relative_to(other) for other in TESTS_ELSEWHERE)
    }
    assert homeless == set(), "tests of what? Or say so in TESTS_ELSEWHERE"
    assert all((TESTS / other).is_dir() for other in TESTS_ELSEWHERE)
    assert {path.stem.removeprefix("test_") for path in TESTS.glob("test_*.py")} == (
        TESTS_OF_THE_WHOLE
    )
    rooms = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    assert set(FOLDERS) - rooms == set(), "nothing tests them"


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith(PURE)])
def test_maths_is_pure(module: str) -> None:
    """Strategies and privacy know no torch, gRPC, files, clocks or logs."""
    allowed = CLOCK_IS_HANDED_IN.get(module, set())
    for line, name in imports(module):
        top = name.partition(".")[0]
        assert top not in IMPURE - allowed, f"{MODULES[module]}:{line} imports {name}"
    opened = [node.lineno for node in calls(module) if dotted(node.func) in {"open", "print"}]
    assert not opened, f"{MODULES[module]}:{opened} opens or prints"


def calls(module: str) -> Iterator[ast.Call]:
    """Yield every call in a module."""
    return (node for node in ast.walk(parse(module)) if isinstance(node, ast.Call))


def dotted(node: ast.expr) -> str:
    """Return "a.b" for the expression a.b, as far as it is names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("module", MODULES)
def test_nothing_unpickles_or_evaluates(module: str) -> None:
    """No bytes that a peer can write become code."""
    for line, name in imports(module):
        assert name.partition(".")[0] not in UNSAFE_MODULES, f"{MODULES[module]}:{line}: {name}"
    for node in calls(module):
        called, at = dotted(node.func), f"{MODULES[module]}:{node.lineno}"
        assert called not in UNSAFE_CALLS, f"{at} calls {called}"
        pickles = [word.value for word in node.keywords if word.arg == "allow_pickle"]
        for value in pickles:
            assert isinstance(value, ast.Constant) and value.value is False, f"{at} pickles"
        if called in {"np.load", "numpy.load", "np.save", "numpy.save"}:
            assert pickles, f"{at} must say allow_pickle=False"


@pytest.mark.parametrize(
    "module", ["meadow", "meadow.config.load", "meadow.partitioning.partition"]
)
def test_the_face_is_light(module: str) -> None:
    """Importing the package or its configuration loads neither torch nor gRPC."""
    check = f"import {module}, sys; print(sorted({{'torch', 'grpc', 'flwr'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", meadow.__all__)
def test_public_names_exist(name: str) -> None:
    """Every public name can be had, and is listed by dir()."""
    assert getattr(meadow, name) is getattr(meadow, name)
    assert name in dir(meadow)


def test_unknown_names_are_attribute_errors() -> None:
    """A name that is not public is refused as by any module."""
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = meadow.nothing  # type: ignore[attr-defined]
