"""docs/data.md: its examples call what there is, with arguments that there are."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from meadow import datasets

PAGE = (Path(__file__).parent.parent.parent / "docs" / "data.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def calls(text: str) -> list[tuple[str, ast.Call]]:
    """Return the calls of `meadow.datasets.NAME` in an example."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    names = [(ast.unparse(node.func), node) for node in found]
    start = "meadow.datasets."
    return [(name.removeprefix(start), node) for name, node in names if name.startswith(start)]


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_call_what_there_is(text: str) -> None:
    """Every adapter in the page takes the arguments that the page gives it."""
    for name, call in calls(text):
        signature = inspect.signature(getattr(datasets, name))
        values = [None for argument in call.args if not isinstance(argument, ast.Starred)]
        signature.bind(*values, **{str(word.arg): None for word in call.keywords})


def test_every_adapter_has_an_example() -> None:
    """A new adapter is documented before it lands."""
    shown = {name for text in EXAMPLES for name, _ in calls(text)}
    assert shown == {name for name in datasets.__all__ if name.islower()}
