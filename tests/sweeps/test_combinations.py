"""Combinations: values split as TOML has them, names that say them, and a bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meadow.errors import ConfigError
from meadow.sweeps.combinations import COMBINATIONS_MAX, grid_of, split_values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1,0.01", ["0.1", "0.01"]),
        (" 1 , 2 ", ["1", "2"]),
        ("sgd", ["sgd"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ('"a\\",b",c', ['"a\\",b"', "c"]),
        ('["a", "b"],["c"]', ['["a", "b"]', '["c"]']),
        ("{a = [1, 2], b = ']'},3", ["{a = [1, 2], b = ']'}", "3"]),
    ],
)
def test_values_are_split_outside_of_quotes_and_brackets(text: str, values: list[str]) -> None:
    """A comma inside of a TOML value is part of it."""
    assert split_values(text) == values


@given(
    st.lists(st.text(st.characters(blacklist_characters="'\"[]{},\\", codec="ascii"), min_size=1))
)
def test_splitting_undoes_joining(texts: list[str]) -> None:
    """Any texts in quotes, joined by commas, come back."""
    quoted = [f"'{text}'" for text in texts]
    if quoted:
        assert split_values(",".join(quoted)) == quoted


def test_the_product_of_all_values() -> None:
    """Every combination once, the last key fastest; single values are fixed and in no name."""
    grid = grid_of(["training.learning_rate=0.1,0.01", "run.rounds=3", "run.seed=1,2"])
    assert [each.name for each in grid.combinations] == [
        "learning_rate=0.1,seed=1",
        "learning_rate=0.1,seed=2",
        "learning_rate=0.01,seed=1",
        "learning_rate=0.01,seed=2",
    ]
    assert grid.overrides(grid.combinations[2]) == (
        "run.rounds=3",
        "run.seed=1",
        "training.learning_rate=0.01",
    )


def test_quoted_texts_lose_their_quotes() -> None:
    """`meadow simulate --set` takes a text bare; lists stay TOML."""
    grid = grid_of(["""app.mode='a,b',"c\\u0064",[1,2],plain"""])
    values = [each.values["app.mode"] for each in grid.combinations]
    assert values == ["a,b", "cd", "[1,2]", "plain"]


def test_names_are_fit_for_folders_and_differ() -> None:
    """No slash, no space, no leading dot; values that look alike get the run's number."""
    grid = grid_of(["a.data='../x','/x',' x '", "b.data=1,2"])
    names = [each.name for each in grid.combinations]
    assert names[0] == "a.data=..-x,b.data=1"
    assert len(set(names)) == 6 and all("/" not in name and " " not in name for name in names)
    long = grid_of([f"key={'a' * 300},{'a' * 299}b"]).combinations
    assert len({each.name for each in long}) == 2 and max(len(each.name) for each in long) <= 150


def test_one_combination_is_a_run() -> None:
    """Where nothing varies the run is called so."""
    assert [each.name for each in grid_of(["run.seed=1"]).combinations] == ["run"]


FAULTS = {
    "no value": (["run.seed="], "has no value; write --set key=value,value"),
    "no equals": (["run.seed"], "has no value"),
    "comma at the end": (["run.seed=1,"], "a value is empty; write key=value,value without"),
    "open bracket": (["a=[1,2"], "] is missing; put text with a quote or bracket in quotes"),
    "open quote": (["a='1,2"], "' is missing"),
    "half quoted": (["a='1'x,2"], "'1'x is no TOML"),
    "empty text": (["a='',2"], "'' is an empty text"),
    "twice": (["run.seed=1,2,1"], "has '1' twice; leave one out"),
    "key twice": (["run.seed=1", "run.seed=2"], "--set run.seed: is there twice; give all its"),
    "too many": (
        [f"a={','.join(map(str, range(101)))}", f"b={','.join(map(str, range(100)))}"],
        f"at most {COMBINATIONS_MAX} combinations, these are 10100; give fewer values",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_option_is_named(fault: str) -> None:
    """The error names the option and what would be right."""
    settings, sentence = FAULTS[fault]
    with pytest.raises(ConfigError) as raised:
        grid_of(settings)
    assert sentence in str(raised.value)
