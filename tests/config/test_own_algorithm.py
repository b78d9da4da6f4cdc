"""An algorithm of one's own: its builder's keyword arguments are the keys of [strategy]."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from meadow.apps.folder import App
from meadow.config.load import config_to_toml, load_config, make_config
from meadow.config.rules.builders import build_algorithm
from meadow.config.schema.settings import rule_of
from meadow.config.sections.strategy import StrategyConfig
from meadow.errors import AppError, ConfigError, MeadowError, ProtocolError
from meadow.strategies.algorithms.builders import BUILT_IN, entry_of
from meadow.strategies.algorithms.catalogue import CATALOGUE

MINE = """
from typing import Annotated, Literal
import meadow

class Client(meadow.LocalAlgorithm):
    pass

@meadow.builder(privacy=("client", "record"))
def mine(*, mu: Annotated[float, meadow.Bounds(at_least=0, below=1)] = 0.5, steps: int = 3,
         kind: Literal["a", "b"] = "a", names: tuple[str, ...] = (), rate: float | None = None):
    if names == ("x",):
        raise meadow.MeadowError if rate else ValueError("no x")
    return meadow.averaging("mine", client=Client())

@meadow.builder
def server_only(*, proximal_mu: float):
    return meadow.averaging("server_only")

@meadow.builder
def wrong():
    return 5

@meadow.builder
def loose(mu: "Unknown" = None, *more, **others):
    return meadow.averaging("loose")

def bare(*, mu=1.0):
    return meadow.averaging("bare")

Number = 7
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A folder with algorithms; its meadow.toml names one."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    (folder / "task.py").write_text(
        "import meadow\ntask = meadow.Task(client_data=lambda site: None)\n"
    )
    (folder / "meadow.toml").write_text('[strategy]\nname = "mine:mine"\nmu = 0.25\n')
    return folder


def test_the_keys_are_the_builders_arguments(app: Path) -> None:
    """Defaults are filled in, text is converted, and the resolved file gives the same again."""
    overrides = ["strategy.steps=4", 'strategy.names=["u", "v"]', "strategy.rate=2"]
    loaded = App.load(app, overrides=overrides, environ={}).with_own_code()
    assert loaded.config is not None
    strategy = loaded.config.strategy
    assert strategy.name == "mine:mine"
    assert dict(strategy.options) == {
        "mu": 0.25, "steps": 4, "kind": "a", "names": ["u", "v"], "rate": 2,
    }  # fmt: skip
    algorithm = build_algorithm(loaded.config)
    assert algorithm.recipe is not None
    assert algorithm.recipe.arguments["names"] == ("u", "v")
    assert algorithm.recipe.arguments["rate"] == 2.0
    (app / "meadow.toml").write_text(config_to_toml(loaded.config))
    again = App.load(app, environ={}).with_own_code()
    assert again.config is not None
    assert again.config.strategy == strategy


def test_what_only_a_type_checker_knows_is_passed_as_it_is(app: Path) -> None:
    """And arguments of any name are no keys."""
    set_ = ["strategy.name=mine:loose", "strategy.mu=[[1, 2]]"]
    loaded = App.load(app, overrides=set_, environ={}).with_own_code()
    assert loaded.config is not None
    assert loaded.config.algorithm.recipe.arguments == {"mu": [[1, 2]]}
    with pytest.raises(ConfigError, match=r"strategy.others is not a keyword of mine:loose"):
        App.load(app, overrides=[*set_, "strategy.others=1"], environ={}).with_own_code()


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            "strategy.mu=1",
            r"strategy.mu must be a number >= 0 and < 1, got 1.0; it is an argument of mine:mine",
        ),
        ("strategy.mu=high", "strategy.mu must be a number"),
        ("strategy.steps=2.5", "strategy.steps must be a whole number"),
        ("strategy.kind=c", '"a" or "b", got "c"'),
        (
            "strategy.stepps=2",
            "strategy.stepps is not a keyword of mine:mine; did you mean strategy.steps",
        ),
        ("strategy.zzz=2", "strategy.zzz is not a keyword of mine:mine; it takes mu, steps"),
        ("strategy.name=mine:server_only", "strategy.mu is not a keyword of mine:server_only"),
        ("strategy.name=mine:wrong", "strategy.mu is not a keyword"),
        ("strategy.name=mine:bare", "'mine:bare' is a function without @meadow.builder; put that"),
        ("strategy.name=mine:Number", "'mine:Number' is a int without @meadow.builder"),
        ("strategy.name=mine:nothing", "mine.py has no 'nothing'"),
        ("strategy.name=nothing:mine", "importing 'nothing' failed: ModuleNotFoundError"),
        ("strategy.name=os:system", "'os:system' is a builtin_function_or_method without"),
        ('strategy.names=["x"]', r"mine:mine failed: ValueError: no x \(mine.py, line"),
        ("strategy.name=mine", 'strategy.name must be "fedavg" or'),
        ("strategy.name=scaffold", "strategy.mu is not a known key"),
        ("privacy.secure_aggregation.corrupt_fraction=7", "corrupt_fraction"),
    ],
)
def test_mistakes_name_module_builder_key_and_remedy(app: Path, override: str, says: str) -> None:
    """Whether they are found when the file is read, or when the code is loaded."""
    with pytest.raises(MeadowError, match=says):
        App.load(app, overrides=[override], environ={}).with_own_code()


def test_an_argument_without_a_default_must_be_said(app: Path) -> None:
    """And keys of Meadow's own algorithms belong to the builder, if it takes them."""
    (app / "meadow.toml").write_text('[strategy]\nname = "mine:server_only"\n')
    with pytest.raises(
        ConfigError, match=r"strategy.proximal_mu is missing: mine:server_only needs"
    ):
        App.load(app, environ={}).with_own_code()
    loaded = App.load(app, overrides=["strategy.proximal_mu=2"], environ={}).with_own_code()
    assert loaded.config is not None and loaded.config.algorithm.recipe.arguments == {
        "proximal_mu": 2.0
    }


def test_what_a_builder_makes_is_an_algorithm(app: Path) -> None:
    """Anything else is refused when it is built."""
    (app / "meadow.toml").write_text('[strategy]\nname = "mine:wrong"\n')
    with pytest.raises(AppError, match=r"made a int, not a"):
        App.load(app, environ={}).with_own_code()


PRIVATE = (
    "[privacy.differential_privacy]\nenabled = true\nnoise_multiplier = 1.0\nsampling = 'fixed'\n"
)


RECORD = PRIVATE.replace("sampling = 'fixed'", 'unit = "record"\nsampling_rate = 0.1')


@pytest.mark.parametrize(
    ("name", "section", "says"),
    [
        ("mine:mine", PRIVATE, None),
        ("mine:server_only", PRIVATE, r'let your own builder declare privacy=\("client",\)'),
        (
            "mine:mine",
            RECORD,
            "use their data for more than its steps",
        ),
    ],
)
def test_privacy_only_where_it_is_declared(
    app: Path, name: str, section: str, says: str | None
) -> None:
    """The rules of all algorithms hold for one's own, once its code is loaded."""
    more = "proximal_mu = 1" if name == "mine:server_only" else ""
    (app / "meadow.toml").write_text(
        f'[strategy]\nname = "{name}"\n{more}\n[run]\nmin_clients = 2\ncohort = 2\n{section}'
    )
    loaded = App.load(app, environ={})
    if says is None:
        loaded.with_own_code()
        return
    with pytest.raises(ConfigError, match=says):
        loaded.with_own_code()


def test_a_peer_names_no_code(app: Path) -> None:
    """A client takes the arguments of a run, for the builder of its own meadow.toml alone."""
    task = App.load(app, environ={}).load_task()
    assert task.algorithm is not None
    made = task.algorithm("mine:mine", '{"mu": 0.125}')
    assert made.recipe.arguments["mu"] == 0.125
    for name, arguments, says in (
        (
            "mine:server_only",
            '{"proximal_mu": 1}',
            "is not that of this copy of the app, 'mine:mine'",
        ),
        ("os:system", '{"command": "true"}', "is not that of this copy of the app"),
        ("mine:mine", '{"mu": 2}', "strategy.mu must be a number >= 0 and < 1"),
        ("mine:mine", "[1]", "must be a table"),
        ("mine:mine", "{" * 30_000, "characters of text"),
    ):
        with pytest.raises(ProtocolError, match=says):
            task.algorithm(name, arguments)


def test_a_config_without_the_apps_code_says_so() -> None:
    """The file can be read without any code; what needs the algorithm says what to do."""
    config = make_config({"strategy": {"name": "mine:mine", "mu": 0.5, "beta_1": [1]}})
    assert dict(config.strategy.options) == {"mu": 0.5, "beta_1": [1]}
    with pytest.raises(
        ConfigError, match=r"an app's own algorithm, and the app's code is not loaded"
    ):
        build_algorithm(config)
    with pytest.raises(ConfigError, match=r"strategy.mu must be made of finite numbers"):
        make_config({"strategy": {"name": "mine:mine", "mu": float("nan")}})


def test_the_environment_may_name_it(app: Path) -> None:
    """As any key; free keys come from the file and from --set."""
    (app / "meadow.toml").write_text("[strategy]\nmu = 0.125\n")
    said = {"MEADOW_STRATEGY__NAME": "mine:mine"}
    config = load_config(app, environ=said)
    assert (config.strategy.name, dict(config.strategy.options)) == ("mine:mine", {"mu": 0.125})


@pytest.mark.parametrize("name", BUILT_IN)
def test_meadows_own_come_through_the_same_door(name: str, app: Path) -> None:
    """Each is a `@builder` function, which can be named by its module too."""
    entry = CATALOGUE[name]
    assert entry_of(entry.builder) is entry
    strategy: dict[str, Any] = {"name": entry.reference, **entry.example}
    lines = "".join(f"{key} = {value!r}\n" for key, value in strategy.items())
    run = "[run]\nmin_clients = 1\ncohort = 1\n" if entry.single else "[run]\nmin_clients = 3\n"
    (app / "meadow.toml").write_text(f"[strategy]\n{lines}{run}")
    loaded = App.load(app, environ={}).with_own_code()
    assert loaded.config is not None
    assert build_algorithm(loaded.config).client_config == entry.builder(**{
        argument: entry.example[key] for argument, key in entry.arguments.items() if key in entry.example
    }).client_config  # fmt: skip


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_keys_of_meadows_own_are_their_builders_arguments(name: str) -> None:
    """[strategy] has a key for each argument, beside that name alone, and none that nobody takes."""
    section = {
        entry.name
        for entry in fields(StrategyConfig)
        if name in rule_of(entry, None).only.get("name", ())
    }
    assert section == set(CATALOGUE[name].arguments.values()) - {"seed"}
