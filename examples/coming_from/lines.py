"""How many lines of code a program has, without blank lines, comments and docstrings.

    python examples/coming_from/lines.py

prints them for every original and its port; what both share, digits.py, is counted for neither.
"""

from __future__ import annotations

import ast
from pathlib import Path

HERE = Path(__file__).parent
SHARED = {"digits.py"}
PORTS = {"task.py", "meadow.toml", "port.py"}


def lines_of(path: Path) -> int:
    """Count the lines of one file of Python, TOML or YAML."""
    text = path.read_text()
    told = {
        number
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                told -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(told)


def counted(folder: Path) -> tuple[int, int]:
    """Return how many lines the original in a folder has, and the port beside it."""
    files = [path for path in folder.iterdir() if path.suffix in {".py", ".toml", ".yaml"}]
    files = [path for path in files if path.name not in SHARED]
    ports = [lines_of(path) for path in files if path.name in PORTS]
    return sum(map(lines_of, files)) - sum(ports), sum(ports)


if __name__ == "__main__":
    for folder in sorted(path.parent for path in HERE.glob("*/original.py")):
        original, port = counted(folder)
        print(f"{folder.name}: original {original}, port {port}")
