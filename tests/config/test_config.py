"""meadow.toml: defaults, precedence, and errors that name where, the key and the remedy."""

from __future__ import annotations

import re
import tomllib
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meadow.config.load import config_to_toml, load_config, make_config
from meadow.config.rules.builders import build_algorithm, build_partition, training_record
from meadow.config.schema.settings import settings_of
from meadow.config.sections.model import Config
from meadow.deprecated import RenamedWarning
from meadow.errors import ConfigError
from meadow.strategies.algorithms.algorithm import Aggregate
from meadow.strategies.algorithms.catalogue import CATALOGUE

SECURE = "[privacy.secure_aggregation]\nenabled = true\n"
LOCAL = "epsilon = 2.0\nsampling = 'fixed'\n"
TREE = "correlation = 'tree'\n[selection]\nmin_separation = 9\n[run]\ncohort = 10"
RECORD = "unit = 'record'\nsampling_rate = 0.1\nepsilon = 2.0\n"
PRIVATE = "[simulation]\nclients = 100\n[privacy.differential_privacy]\nenabled = true\n"
DESIGN = """
[app]
task = "task:task"
[run]
rounds = 20
seed = 7
cohort = 1.0
min_clients = 2
deadline_s = 600
[strategy]
name = "fedavg"
[training]
epochs = 1
batch_size = 10
optimizer = "sgd"
learning_rate = 0.1
[evaluation]
every = 1
[simulation]
clients = 100
partition = "iid"
executor = "auto"
[privacy.secure_aggregation]
enabled = false
[privacy.differential_privacy]
enabled = false
"""


def written(folder: Path, text: str) -> Path:
    """Write a meadow.toml and return its path."""
    path = folder / "meadow.toml"
    path.write_text(text)
    return path


def load(folder: Path, text: str, **more: Any) -> Config:
    """Load a meadow.toml of this text in an empty environment."""
    return load_config(written(folder, text), **{"environ": {}, **more})


def test_the_documented_example_is_read(tmp_path: Path) -> None:
    """The file of the documentation gives what it says."""
    config = load(tmp_path, DESIGN)
    assert (config.run.rounds, config.run.seed, config.run.cohort) == (20, 7, 1.0)
    assert (config.run.deadline_s, type(config.run.deadline_s)) == (600.0, float)
    assert (config.training.batch_size, config.training.learning_rate) == (10, 0.1)
    assert config.source == tmp_path / "meadow.toml"


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    """Nothing has to be said."""
    assert load(tmp_path, "") == Config() == make_config({})


def test_a_folder_means_its_file(tmp_path: Path) -> None:
    """An app's folder can be named instead of its file."""
    written(tmp_path, DESIGN)
    assert load_config(tmp_path, environ={}) == load(tmp_path, DESIGN)


def test_configs_are_frozen() -> None:
    """What was checked cannot change afterwards."""
    with pytest.raises(FrozenInstanceError):
        make_config({}).run.rounds = 3  # type: ignore[misc]


def test_precedence(tmp_path: Path) -> None:
    """Defaults < file < environment < overrides, the last override winning."""
    text = "[run]\nrounds = 2\nseed = 2\nmin_clients = 3\n[training]\nepochs = 2"
    config = load(
        tmp_path,
        text,
        environ={"MEADOW_RUN__ROUNDS": "4", "MEADOW_RUN__SEED": "4", "MEADOW_TRAINING__EPOCHS": ""},
        overrides=["run.seed=5", "run.seed = 6"],
    )
    assert config.run.deadline_s == 600.0
    assert (config.run.min_clients, config.training.epochs) == (3, 2)
    assert (config.run.rounds, config.run.seed) == (4, 6)


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("run.cohort=0.5", "run", "cohort", 0.5),
        ("run.cohort=5", "run", "cohort", 5),
        ("run.deadline_s=1e3", "run", "deadline_s", 1000.0),
        ("run.update_norm_max=3", "run", "update_norm_max", 3.0),
        ("training.optimizer=adamw", "training", "optimizer", "adamw"),
        ("app.task=code.task:my_task", "app", "task", "code.task:my_task"),
    ],
)
def test_texts_become_values(override: str, section: str, key: str, value: object) -> None:
    """The text of an override is read as the key's type."""
    got = getattr(getattr(make_config({}, overrides=[override]), section), key)
    assert (got, type(got)) == (value, type(value))


def test_booleans_in_variables_may_be_capital() -> None:
    """False and FALSE are what people write in an environment."""
    for text in ("false", "False", "FALSE"):
        environ = {"MEADOW_PRIVACY__SECURE_AGGREGATION__ENABLED": text}
        assert not make_config({}, environ=environ).privacy.secure_aggregation.enabled


def test_early_stopping_is_on_when_named() -> None:
    """An empty table turns early stopping on with its defaults; absent is off."""
    assert make_config({}).run.early_stopping is None
    stopping = make_config({"run": {"early_stopping": {}}}).run.early_stopping
    assert stopping is not None
    assert (stopping.metric, stopping.mode, stopping.patience) == ("evaluate.loss", "min", 5)
    by_key = make_config({}, overrides=["run.early_stopping.patience=3"]).run.early_stopping
    assert by_key is not None and by_key.patience == 3


def test_simulated_clients_follow_what_the_run_needs() -> None:
    """Unless said, there are at least as many clients as a round needs."""
    assert make_config({"run": {"min_clients": 300}}).simulation.clients == 300
    assert make_config({"run": {"cohort": 200}}).simulation.clients == 200


WRONG: list[tuple[str, str, list[str]]] = [
    ("unknown section", "[trainig]\nepochs = 1", ["trainig", "did you mean training?"]),
    ("unknown key", "[run]\nround = 1", ["run.round", "did you mean run.rounds?"]),
    ("another section's key", "[run]\nepochs = 1", ["run.epochs", "training.epochs?"]),
    ("initials", "[training]\nlr = 1", ["training.lr", "did you mean training.learning_rate?"]),
    ("initials without section", "lr = 1", ["lr", "did you mean training.learning_rate?"]),
    ("hyphens", '"learning-rate" = 1', ["learning-rate", "did you mean training.learning_rate?"]),
    ("hyphens in it", "[training]\nlearning-rate = 1", ["did you mean training.learning_rate?"]),
    (
        "unlike any key",
        "[evaluation]\nqqqqqqqqq = 1",
        ["evaluation.qqqqqqqqq", "known are evaluation."],
    ),
    ("key without section", "rounds = 3", ["rounds", "did you mean run.rounds?"]),
    ("section is a value", "run = 3", ["run", "must be a table, [run]", "got 3"]),
    ("key is a table", "[run.rounds]\nx = 1", ["run.rounds", "whole number"]),
    ("text for a number", '[run]\nrounds = "5"', ["run.rounds", "whole number >= 1", '"5"']),
    ("fraction for a count", "[run]\nrounds = 1.5", ["run.rounds", "whole number", "1.5"]),
    ("boolean for a count", "[run]\nrounds = true", ["run.rounds", "whole number", "got true"]),
    ("date for a text", "[training]\noptimizer = 2020-01-01", ["training.optimizer", "sgd"]),
    ("no rounds", "[run]\nrounds = 0", ["run.rounds", ">= 1", "got 0"]),
    ("negative seed", "[run]\nseed = -1", ["run.seed", ">= 0", "-1"]),
    ("seed beyond 63 bits", f"[run]\nseed = {1 << 63}", ["run.seed", "<= 9223372036854775807"]),
    ("no deadline", "[run]\ndeadline_s = 0", ["run.deadline_s", "> 0", "got 0"]),
    ("infinite deadline", "[run]\ndeadline_s = inf", ["run.deadline_s", "got inf"]),
    ("deadline is no number", "[run]\ndeadline_s = nan", ["run.deadline_s", "got nan"]),
    ("a huge integer", f"[run]\ndeadline_s = 1{'0' * 400}", ["run.deadline_s", "number"]),
    ("cohort over 1", "[run]\ncohort = 5.0", ["run.cohort", "fraction in (0, 1]", "write 5"]),
    ("empty cohort", "[run]\ncohort = 0", ["run.cohort", "> 0"]),
    ("more needed than drawn", "[run]\ncohort = 3\nmin_clients = 4", ["run.min_clients", "= 3"]),
    (
        "more needed than simulated",
        "[run]\nmin_clients = 4\n[simulation]\nclients = 3",
        ["run.min_clients", "simulation.clients = 3", "raise clients"],
    ),
    (
        "more drawn than simulated",
        "[run]\ncohort = 4\n[simulation]\nclients = 3",
        ["run.cohort", "simulation.clients = 3"],
    ),
    ("unknown strategy", '[strategy]\nname = "fedavgg"', ["strategy.name", 'mean "fedavg"?']),
    ("another's argument", "[strategy]\nproximal_mu = 1", ["strategy.proximal_mu", '"fedprox"']),
    (
        "negative mu",
        '[strategy]\nname = "fedprox"\nproximal_mu = -1',
        ["strategy.proximal_mu", ">= 0", "-1"],
    ),
    (
        "momentum of another server optimizer",
        '[strategy]\nserver_optimizer = "adam"\nserver_momentum = 0.9',
        ["strategy.server_momentum", '"sgd"', '"adam"'],
    ),
    (
        "server optimizer with fedprox",
        '[strategy]\nname = "fedprox"\nbeta_1 = 0.5',
        ["strategy.beta_1", 'only for when strategy.name is "fedavg"'],
    ),
    (
        "another's share",
        '[strategy]\nname = "afl"\nparticipation = 0.5',
        ["strategy.participation", '"scaffold" or "feddyn"', '"afl"'],
    ),
    (
        "control variates of adam",
        '[strategy]\nname = "scaffold"\n[training]\noptimizer = "adam"',
        ["training.optimizer", '"scaffold"', 'set it to "sgd"'],
    ),
    (
        "control variates with momentum",
        '[strategy]\nname = "scaffold"\n[training]\nmomentum = 0.9',
        ["training.momentum", '"scaffold"', "set it to 0"],
    ),
    (
        "a norm of more than params",
        '[strategy]\nname = "scaffold"\n[run]\nupdate_norm_max = 1',
        ["run.update_norm_max", '"scaffold"', "sends control too"],
    ),
    (
        "nothing private",
        '[strategy]\nname = "fedper"',
        ["strategy.private", "must be said", "private = ['out.*']"],
    ),
    (
        "counts in secure sums",
        f'[strategy]\nname = "fednova"\n[run]\nmin_clients = 3\n{SECURE}',
        ["privacy.secure_aggregation.enabled", '"fednova"', "clipping would change"],
    ),
    (
        "momentum with adam",
        '[training]\noptimizer = "adam"\nmomentum = 0.9',
        ["training.momentum", '"sgd"', "remove momentum"],
    ),
    ("betas with sgd", "[training]\nbeta_1 = 0.9", ["training.beta_1", '"adam" or "adamw"']),
    ("decay without steps", "[training]\ndecay = 0.5", ["training.decay", '"step"']),
    ("endless warm-up", "[training]\nwarmup_rounds = 11", ["warmup_rounds", "run.rounds = 10"]),
    ("beta of one", '[training]\noptimizer = "adam"\nbeta_2 = 1', ["training.beta_2", "< 1"]),
    ("unknown precision", '[training]\nprecision = "fp8"', ["training.precision", '"bf16"']),
    ("policy without bound", '[run]\nupdate_norm_policy = "clip"', ["update_norm_max is set"]),
    ("alpha with iid", "[simulation]\nalpha = 0.5", ["simulation.alpha", '"dirichlet"']),
    (
        "secure sums of two",
        "[privacy.secure_aggregation]\nenabled = true",
        ["run.min_clients = 2 must be >= 3", "privacy.secure_aggregation.enabled"],
    ),
    (
        "secure sums of single norms",
        f"{SECURE}[run]\nmin_clients = 3\nupdate_norm_max = 1.0",
        ["enabled = true shows the server nothing but sums", "remove it"],
    ),
    (
        "secure sums of too many",
        f"{SECURE}[run]\nmin_clients = 3\n[simulation]\nclients = 10001",
        ["run.cohort draws 10001 clients", "at most 10000"],
    ),
    (
        "secure sums of more than a complete graph",
        f"{SECURE}[run]\nmin_clients = 3\n[simulation]\nclients = 600",
        ["privacy.secure_aggregation is not safe", "no ring of 600 clients", "lower corrupt"],
    ),
    (
        "secure groups larger than a cohort",
        f"{SECURE}group_size = 5\n[run]\nmin_clients = 4\n[simulation]\nclients = 20",
        ["run.min_clients = 4 must be >= privacy.secure_aggregation.group_size = 5"],
    ),
    (
        "secure groups of two",
        f"{SECURE}group_size = 2\n[run]\nmin_clients = 4",
        ["privacy.secure_aggregation.group_size", ">= 3"],
    ),
    (
        "secure sums elsewhere",
        f'{SECURE}[run]\nmin_clients = 3\n[simulation]\nexecutor = "vectorized"',
        ['simulation.executor = "vectorized"', '"sequential" or "auto"'],
    ),
    (
        "secure sums in virtual time",
        f"{SECURE}[run]\nmin_clients = 3\n[simulation.devices]\nfailure = 0.1",
        ["simulation.devices does not know"],
    ),
    (
        "secure sums without room",
        f"{SECURE}bits = 16\n[run]\nmin_clients = 3",
        ["privacy.secure_aggregation is not safe", "could overflow"],
    ),
    (
        "secure sums among colluders",
        f"{SECURE}corrupt_fraction = 0.9\n[run]\nmin_clients = 3",
        ["privacy.secure_aggregation is not safe", "lower dropout"],
    ),
    (
        "secure keys without it",
        "[privacy.secure_aggregation]\nclip = 0.5",
        ["value_bound is only for when privacy.secure_aggregation.enabled is"],
    ),
    (
        "privacy without a budget or noise",
        f"{PRIVATE}",
        ["epsilon or noise_multiplier must be given, and not both"],
    ),
    (
        "privacy with a budget and noise",
        f"{PRIVATE}epsilon = 2.0\nnoise_multiplier = 1.0",
        ["epsilon or noise_multiplier must be given, and not both"],
    ),
    (
        "a delta that shows a client outright",
        f"{PRIVATE}epsilon = 2.0\ndelta = 0.01",
        ["privacy.differential_privacy.delta", "less than 1 / 100"],
    ),
    (
        "privacy beside secure sums",
        f"{PRIVATE}epsilon = 2.0\n{SECURE}[run]\nmin_clients = 3",
        ["differential_privacy.noise", 'set noise = "distributed"'],
    ),
    (
        "shares of noise without secure sums",
        f"{PRIVATE}epsilon = 2.0\nnoise = 'distributed'\nsampling = 'fixed'",
        ["differential_privacy.noise", "privacy.secure_aggregation.enabled = true"],
    ),
    (
        "amplification against a server that knows who takes part",
        f"{PRIVATE}epsilon = 2.0\nnoise = 'local_gaussian'",
        ["differential_privacy.sampling", "a server that knows", 'set sampling = "fixed"'],
    ),
    (
        "a clip that moves, with noise of clients",
        f"{PRIVATE}{LOCAL}noise = 'local_gaussian'\nclipping = 'adaptive'",
        ["differential_privacy.clipping", "noise that the server adds"],
    ),
    (
        "noise for an L1 norm, with clips of L2 norms",
        f"{PRIVATE}{LOCAL}noise = 'local_laplace'\nclipping = 'per_layer'",
        ["differential_privacy.clipping", "L1 norm"],
    ),
    (
        "correlated noise of clients",
        f"{PRIVATE}{LOCAL}noise = 'local_gaussian'\n{TREE}",
        ["differential_privacy.correlation", "noise that the server adds"],
    ),
    (
        "records without a rate",
        f"{PRIVATE}epsilon = 2.0\nunit = 'record'",
        ["differential_privacy.unit", "needs", "sampling_rate"],
    ),
    (
        "records without a budget or noise",
        f"{PRIVATE}unit = 'record'\nsampling_rate = 0.1",
        ["epsilon or noise_multiplier must be given, and not both"],
    ),
    (
        "records of clients that send more than params",
        f"{PRIVATE}{RECORD}[strategy]\nname = 'scaffold'",
        ["differential_privacy.unit", "'scaffold'", 'choose "fedavg"'],
    ),
    (
        "records and another clip",
        f"{PRIVATE}{RECORD}[training]\ngradient_clip_norm = 1.0",
        ["differential_privacy.unit", "remove training.gradient_clip_norm"],
    ),
    (
        "records in half precision",
        f"{PRIVATE}{RECORD}[training]\nprecision = 'bf16'",
        ["differential_privacy.unit", 'set training.precision = "fp32"'],
    ),
    (
        "records and cohorts by loss",
        f"{PRIVATE}{RECORD}[selection]\nkind = 'power_of_choice'",
        ["differential_privacy.unit", "selection.kind"],
    ),
    (
        "records stopped by what clients measured",
        f"{PRIVATE}{RECORD}[run.early_stopping]",
        ["differential_privacy.unit", "no metric leaves a client"],
    ),
    (
        "a client's key beside records",
        f"{PRIVATE}{RECORD}clipping = 'per_layer'",
        ["clipping is only for when privacy.differential_privacy.unit is"],
    ),
    (
        "a record's key beside clients",
        f"{PRIVATE}epsilon = 2.0\nsampling_rate = 0.1",
        ["sampling_rate is only for when privacy.differential_privacy.unit is"],
    ),
    (
        "privacy beside another clip",
        f"{PRIVATE}epsilon = 2.0\n[run]\nupdate_norm_max = 1.0",
        ["differential_privacy.enabled", "remove run.update_norm_max"],
    ),
    (
        "privacy stopped by what clients measured",
        f"{PRIVATE}epsilon = 2.0\n[run.early_stopping]",
        ["differential_privacy.enabled", "watch a", "server_data"],
    ),
    (
        "privacy of an algorithm whose clients send more than params",
        f"{PRIVATE}epsilon = 2.0\n[strategy]\nname = 'scaffold'",
        ["differential_privacy.enabled", "'scaffold'", 'choose "fedavg"'],
    ),
    (
        "records with a delta that shows half of them",
        f"{PRIVATE}epsilon = 2.0\nunit = 'record'\nsampling_rate = 0.1\ndelta = 0.5",
        ["differential_privacy.delta", "at most 0.01 for examples"],
    ),
    (
        "privacy of cohorts that depend on data",
        f"{PRIVATE}epsilon = 2.0\n[selection]\nkind = 'utility'",
        ["differential_privacy.enabled", 'selection.kind = "uniform"'],
    ),
    (
        "more drawn than there are",
        f"{PRIVATE}epsilon = 2.0\npopulation = 5\n[run]\ncohort = 50",
        ["privacy.differential_privacy.population", "raise population"],
    ),
    (
        "a quantile that nothing follows",
        f"{PRIVATE}epsilon = 2.0\ntarget_quantile = 0.9",
        ["target_quantile", "clipping"],
    ),
    ("task without a name", '[app]\ntask = "task"', ["app.task", "module:name"]),
    ("task is a path", '[app]\ntask = "../task.py:task"', ["app.task", "module:name"]),
    (
        "nothing measured",
        "[run.early_stopping]\n[evaluation]\nevery = 0",
        ["run.early_stopping.metric", "evaluation.every"],
    ),
    (
        "unknown metric",
        '[run.early_stopping]\nmetric = "loss"',
        ["run.early_stopping.metric", "evaluate."],
    ),
    ("not TOML", "[run\n", ["not valid TOML"]),
    ("said twice", "[run]\nseed = 1\nseed = 2", ["not valid TOML"]),
    ("nested without end", f"x = {'[' * 20000}", ["meadow.toml"]),
]


@pytest.mark.parametrize(("text", "says"), [case[1:] for case in WRONG], ids=[c[0] for c in WRONG])
def test_mistakes_are_named(tmp_path: Path, text: str, says: list[str]) -> None:
    """Every mistake names the file, the key, and what would be right."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "meadow.toml"))
    for part in says:
        assert part in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"MEADOW_RUN__ROUNDS": "many"}, "MEADOW_RUN__ROUNDS: run.rounds must be a whole number"),
        ({"MEADOW_RUN__ROUND": "3"}, "MEADOW_RUN__ROUND: run.round is not a known key; did you"),
        ({"MEADOW_RUN_ROUNDS": "3"}, "MEADOW_RUN_ROUNDS: is not a setting; write MEADOW_RUN__R"),
        ({"MEADOW_RUN__MIN_CLIENTS": "900", "MEADOW_RUN__COHORT": "2"}, "MEADOW_RUN__MIN_CLIENTS:"),
    ],
)
def test_variables_are_named(environ: dict[str, str], says: str) -> None:
    """A mistake in the environment names the variable, not the file."""
    with pytest.raises(ConfigError, match=re.escape(says)):
        make_config({}, environ=environ)


def test_other_variables_are_nobodys_mistake() -> None:
    """Variables without the prefix, or of another kind, are left alone."""
    assert make_config({}, environ={"MEADOW_HOME": "/x", "RUN__ROUNDS": "x"}) == Config()


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("run.rounds", "--set run.rounds: has no value; write --set key=value"),
        ("run.rounds=", "has no value"),
        ("=3", "is not a known key"),
        ("rounds=3", "did you mean run.rounds?"),
        ("run=3", "--set run=3: run is not a known key"),
        ("run.rounds=0", "--set run.rounds=0: run.rounds must be a whole number >= 1"),
        ("run.rounds=3\nseed = 4", "run.rounds must be a whole number"),
        ("privacy.secure_aggregation.enabled=true", "run.min_clients = 2 must be >= 3"),
    ],
)
def test_overrides_are_named(override: str, says: str) -> None:
    """A mistake in an override names the option."""
    with pytest.raises(ConfigError, match=re.escape(says)):
        make_config({}, overrides=[override])


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """A missing, binary or enormous file is a ConfigError with its path."""
    with pytest.raises(ConfigError, match=r"nowhere: there is no such file"):
        load_config(tmp_path / "nowhere", environ={})
    with pytest.raises(ConfigError, match=r"meadow\.toml: there is no such file"):
        load_config(tmp_path, environ={})
    path = tmp_path / "meadow.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(path, environ={})
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(ConfigError, match="larger than"):
        load_config(path, environ={})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config("a\0b", environ={})


EVERYTHING: dict[str, Any] = {
    "run": {
        "cohort": 7,
        "early_stopping": {"metric": "server.accuracy", "mode": "max", "patience": 2},
        "update_norm_max": 10,
        "update_norm_policy": "clip",
    },
    "strategy": {"server_optimizer": "adam", "tau": 1e-9, "beta_1": 0},
    "training": {"optimizer": "adam", "epsilon": 1e-16, "schedule": "step", "decay": 0.5},
    "evaluation": {"every": 3},
    "simulation": {"partition": "dirichlet", "alpha": 0.1},
}


def test_resolved_text_reads_back() -> None:
    """The resolved file says every key that means something, and gives an equal config."""
    for config in (Config(), make_config(EVERYTHING)):
        assert make_config(tomllib.loads(config_to_toml(config))) == config


simple = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEYS = [name for name, *_ in settings_of(Config)]
NAMES = sorted({part for key in KEYS for part in key.split(".")})
CHOICES = sorted(
    {c for _, _, rule, _ in settings_of(Config) for c in rule.choices if c is not False}
)
values = simple | st.sampled_from(CHOICES) | st.dates() | st.lists(simple, max_size=3)
tables: st.SearchStrategy[Any] = st.recursive(
    st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), values, max_size=4),
    lambda inner: st.dictionaries(
        st.sampled_from(NAMES) | st.text(max_size=5), inner | values, max_size=4
    ),
    max_leaves=8,
)


@given(tables)
def test_any_table_is_a_config_or_a_config_error(table: dict[str, Any]) -> None:
    """Whatever a file holds, it is understood and can be written again, or refused."""
    try:
        config = make_config(table)
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        assert make_config(tomllib.loads(config_to_toml(config))) == config


@given(st.dictionaries(st.sampled_from(KEYS), values, max_size=5))
def test_any_values_are_a_config_or_a_config_error(chosen: dict[str, Any]) -> None:
    """Known keys with any values at all are understood or refused."""
    table: dict[str, Any] = {}
    for key, value in chosen.items():
        *sections, leaf = key.split(".")
        inner = table
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[leaf] = value
    try:
        config = make_config(table)
    except ConfigError:
        return
    assert make_config(tomllib.loads(config_to_toml(config))) == config


@given(st.lists(st.text(max_size=30) | st.sampled_from([f"{key}=1" for key in KEYS]), max_size=4))
@example(["tracking.experiment=1"])
def test_any_override_is_a_config_or_a_config_error(overrides: list[str]) -> None:
    """Whatever follows --set is understood or refused."""
    try:
        make_config({}, overrides=overrides)
    except ConfigError as error:
        assert str(error).startswith("--set")


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_config_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """No file makes anything but a config or a ConfigError."""
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    try:
        assert isinstance(load_config(path, environ={}), Config)
    except ConfigError as error:
        assert str(path) in str(error)


def test_training_record_has_flat_kebab_case_keys() -> None:
    """Clients are told every training setting, in names as Flower's apps use."""
    config = make_config({"run": {"rounds": 7, "seed": 3}, "training": {"batch_size": 4}})
    record = training_record(config)
    kebab = {entry.name.replace("_", "-") for entry in fields(config.training)}
    assert set(record) == kebab | {"schedule-rounds", "seed"}
    assert (record["batch-size"], record["schedule-rounds"], record["seed"]) == (4, 7, 3)
    assert all(isinstance(value, int | float | str) for value in record.values())


def test_algorithms_are_built() -> None:
    """Every strategy and server optimizer can be built, with and without arguments."""
    proximal = build_algorithm(make_config({"strategy": {"name": "fedprox", "proximal_mu": 0.5}}))
    assert (proximal.name, dict(proximal.client_config)) == ("fedprox", {"proximal-mu": 0.5})
    for name in ("sgd", "adagrad", "adam", "yogi"):
        assert build_algorithm(make_config({"strategy": {"server_optimizer": name}})).linear
    for arguments in ({"server_momentum": 0.9}, EVERYTHING["strategy"]):
        assert build_algorithm(make_config({"strategy": arguments})).name == "fedavg"


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_strategy_is_built_by_its_name(name: str) -> None:
    """The catalogue and the configuration know the same names, and clients are told theirs."""
    strategy = {"name": name, **CATALOGUE[name].example}
    clients = 1 if CATALOGUE[name].single else 3
    run = {"min_clients": clients, "cohort": clients}
    algorithm = build_algorithm(make_config({"strategy": strategy, "run": run}))
    assert algorithm.name == name


@pytest.mark.parametrize(
    ("run", "share"), [({"cohort": 0.5}, 0.5), ({"cohort": 5}, 0.25), ({"cohort": 1.0}, 1.0)]
)
def test_participation_follows_from_the_cohort(run: dict[str, Any], share: float) -> None:
    """SCAFFOLD's |S| / N is what the cohort says, unless it is said."""
    values = {"run": run, "strategy": {"name": "scaffold"}, "simulation": {"clients": 20}}
    zero = {"at": np.zeros(1)}
    ones = Aggregate(mean={"at": np.ones(1), "control/at": np.ones(1)}, weight=1.0, clients=2)
    for said, expected in (({}, share), ({"participation": 0.125}, 0.125)):
        config = make_config({**values, "strategy": {"name": "scaffold", **said}})
        algorithm = build_algorithm(config)
        state = algorithm.apply(algorithm.init(zero), ones)
        assert state.slots["control"]["at"] == pytest.approx(expected)


def test_partition_is_what_the_section_says() -> None:
    """The simulation's keys make the partition."""
    section = {"partition": "shards", "classes_per_client": 3}
    partition = build_partition(make_config({"simulation": section}))
    assert (partition.kind, partition.classes_per_client) == ("shards", 3)


def test_every_setting_has_a_meaning() -> None:
    """Every key is documented, and its default is within its own bounds."""
    for name, _, rule, default in settings_of(Config):
        assert rule.meaning, name
        assert not rule.choices or default in rule.choices, name


OLD = "privacy.differential_privacy.clip"
NEW = "privacy.differential_privacy.clip_norm"
NOISY = {"enabled": True, "epsilon": 2.0}


def test_old_names_of_settings_are_understood(tmp_path: Path) -> None:
    """A file, a variable, an option and a sweep of before work, and say what the key is now."""
    text = f"{PRIVATE}epsilon = 2.0\nclip = 0.5\nclipping = 'adaptive'\ncount_noise = 3.0\n"
    said = f"meadow.toml: {OLD} is {NEW} now; the old name goes with 0.3"
    with pytest.warns(RenamedWarning, match=re.escape(said)):
        config = load(tmp_path, text)
    chosen = config.privacy.differential_privacy
    assert (chosen.clip_norm, chosen.count_noise_stddev) == (0.5, 3.0)
    assert "clip_norm = 0.5" in config_to_toml(config) and "clip = " not in config_to_toml(config)
    table = {"privacy": {"differential_privacy": NOISY}}
    variable = {"MEADOW_PRIVACY__DIFFERENTIAL_PRIVACY__CLIP": "0.5"}
    for more in ({"environ": variable}, {"overrides": [f"{OLD}=0.5"]}):
        with pytest.warns(RenamedWarning, match="clip_norm now"):
            made = make_config(table, **more)  # type: ignore[arg-type]
        assert made.privacy.differential_privacy.clip_norm == 0.5
    with pytest.warns(RenamedWarning), pytest.raises(ConfigError, match=f"{NEW} must be a number"):
        load(tmp_path, f"{PRIVATE}epsilon = 2.0\nclip = -1.0")


def test_an_old_name_beside_the_new_one_is_refused(tmp_path: Path) -> None:
    """Nobody has to guess which of the two counts; an option is laid over a file by either name."""
    both = f"{PRIVATE}epsilon = 2.0\nclip = 0.5\nclip_norm = 0.6\n"
    with pytest.raises(ConfigError, match=f"{OLD} is the old name of {NEW}, .*; remove it"):
        load(tmp_path, both)
    with pytest.warns(RenamedWarning):
        config = load(tmp_path, f"{PRIVATE}epsilon = 2.0\nclip = 0.5\n", overrides=[f"{NEW}=0.7"])
    assert config.privacy.differential_privacy.clip_norm == 0.7


def test_old_names_of_attributes_are_understood() -> None:
    """Code that reads a config by an old name is told the new one; others are no attributes."""
    secure = make_config({}).privacy.secure_aggregation
    with pytest.warns(RenamedWarning, match="value_bound now"):
        assert secure.clip == secure.value_bound
    with pytest.raises(AttributeError, match="no attribute 'clipp'"):
        _ = secure.clipp
