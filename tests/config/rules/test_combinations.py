"""Every declared rule of the three files: its refusal, and its place in docs/configuration.md."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meadow.config.client_config import ClientConfig, make_client_config
from meadow.config.load import make_config
from meadow.config.rules.combinations import RULES
from meadow.config.schema.rules import Rule
from meadow.config.sections.model import Config
from meadow.config.server_config import ServerConfig, make_server_config
from meadow.errors import ConfigError

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "docs"))
from configuration import own_rules

SECURE = "run.min_clients = 3\nprivacy.secure_aggregation.enabled = true\n"
PRIVATE = "simulation.clients = 100\nprivacy.differential_privacy.enabled = true\n"
CLIENT = PRIVATE + "privacy.differential_privacy.epsilon = 2.0\n"
LOCAL = CLIENT + "privacy.differential_privacy.noise = 'local_gaussian'\n"
EXAMPLE = CLIENT + "privacy.differential_privacy.unit = 'record'\n"
SAMPLED = EXAMPLE + "privacy.differential_privacy.sampling_rate = 0.1\n"
FIXED = "privacy.differential_privacy.sampling = 'fixed'\n"
DP = "privacy.differential_privacy"
ASYNCHRONOUS = "rounds.kind = 'fedbuff'\n"
ANALYTICS = "strategy.name = 'analytics'\nstrategy.columns = ['age=0:120']\nrun.min_clients = 3\n"
ADVERSARIES = "simulation.adversaries.count = 1\n"
DEVICES = "simulation.devices.failure = 0.1\n"
SECRET = "pass-word"
STOPPING = "run.early_stopping.metric = 'evaluate.loss'\n"

MEADOW: list[tuple[str, str]] = [
    ("app.task", "app.task = 'task'"),
    ("run.cohort", "run.cohort = 5.0"),
    ("run.min_clients", "run.cohort = 3\nrun.min_clients = 4"),
    ("run.early_stopping.metric", "run.early_stopping.metric = 'loss'"),
    ("rounds.concurrency", ASYNCHRONOUS + "rounds.concurrency = 2.5"),
    ("tracking.mlflow", "tracking.experiment = 'digits'"),
    ("tracking.mlflow", "tracking.mlflow = 'postgresql://me:" + SECRET + "@db/mlflow'"),
    (
        "tracking.experiment",
        "tracking.wandb = 'offline'\ntracking.experiment = '" + "x" * 101 + "'",
    ),
    (f"{DP}.epsilon", PRIVATE),
    (f"{DP}.epsilon", CLIENT + f"{DP}.noise_multiplier = 1.0"),
    (f"{DP}.unit", EXAMPLE),
    (f"{DP}.delta", SAMPLED + f"{DP}.delta = 0.5"),
    (f"{DP}.sampling", LOCAL),
    (f"{DP}.clipping", LOCAL + FIXED + f"{DP}.clipping = 'adaptive'"),
    (f"{DP}.correlation", LOCAL + FIXED + f"{DP}.correlation = 'tree'"),
    ("run.min_clients", "run.min_clients = 4\nsimulation.clients = 3"),
    ("run.cohort", "run.cohort = 4\nsimulation.clients = 3"),
    ("simulation.adversaries", ADVERSARIES + "compression.upload = 'int8'"),
    ("simulation.executor", "simulation.executor = 'vectorized'\ncompression.upload = 'int8'"),
    ("simulation.adversaries.count", "simulation.adversaries.count = 100"),
    ("training.warmup_rounds", "training.warmup_rounds = 11"),
    ("run.early_stopping.metric", STOPPING + "evaluation.every = 0"),
    ("run.cohort", "selection.min_separation = 2\nrun.cohort = 0.5"),
    ("simulation.devices", DEVICES + "selection.min_separation = 2\nrun.cohort = 2"),
    (
        "simulation.clients",
        "selection.participations_max = 1\nrun.cohort = 20\nsimulation.clients = 30",
    ),
    (
        "simulation.node_resource",
        "simulation.executor = 'ray'\nsimulation.node_resource = 'CPU'",
    ),
    ("strategy.private", "strategy.name = 'fedper'"),
    ("strategy.adapters", "strategy.name = 'lora'\nstrategy.adapters = []"),
    ("strategy.columns", "strategy.name = 'analytics'"),
    ("training.optimizer", "strategy.name = 'scaffold'\ntraining.optimizer = 'adam'"),
    ("training.momentum", "strategy.name = 'scaffold'\ntraining.momentum = 0.9"),
    ("run.update_norm_max", "strategy.name = 'scaffold'\nrun.update_norm_max = 1"),
    ("run.cohort", "strategy.name = 'xgb_cyclic'"),
    ("run.min_clients", ANALYTICS.replace("min_clients = 3", "min_clients = 2")),
    ("strategy", "run.min_clients = 3\nstrategy.name = 'analytics'\nstrategy.columns = ['a=5:1']"),
    ("robust", ANALYTICS + "robust.byzantine = 1"),
    ("compression", ANALYTICS + "compression.upload = 'int8'"),
    ("compression", ANALYTICS + "compression.upload = 'auto'"),
    ("simulation.adversaries", ANALYTICS + ADVERSARIES),
    (DP, ANALYTICS + CLIENT),
    (
        "privacy.secure_aggregation.value_bound",
        ANALYTICS + "privacy.secure_aggregation = {enabled = true, clip = 0.5}",
    ),
    ("rounds.kind", ASYNCHRONOUS + "strategy.name = 'scaffold'"),
    ("rounds.concurrency", ASYNCHRONOUS + "rounds.concurrency = 200"),
    ("run.cohort", ASYNCHRONOUS + "run.cohort = 3"),
    ("run.early_stopping.metric", ASYNCHRONOUS + STOPPING),
    ("robust", ASYNCHRONOUS + "robust.byzantine = 1"),
    ("selection.kind", ASYNCHRONOUS + "selection.kind = 'utility'"),
    ("selection.min_separation", ASYNCHRONOUS + "selection.min_separation = 2"),
    ("selection.participations_max", ASYNCHRONOUS + "selection.participations_max = 2"),
    ("compression", ASYNCHRONOUS + "compression.upload = 'int8'"),
    ("compression", ASYNCHRONOUS + "compression.upload = 'auto'"),
    ("simulation.adversaries", ASYNCHRONOUS + ADVERSARIES),
    ("privacy.secure_aggregation.enabled", ASYNCHRONOUS + SECURE),
    (f"{DP}.enabled", ASYNCHRONOUS + CLIENT),
    ("robust", "robust.aggregation = 'fltrust'"),
    ("robust", "robust.byzantine = 1\nstrategy.name = 'qfedavg'"),
    ("run.min_clients", "robust.aggregation = 'krum'"),
    ("privacy.secure_aggregation.enabled", SECURE + "robust.byzantine = 1"),
    ("run.min_clients", SECURE + "privacy.secure_aggregation.group_size = 5"),
    ("privacy.secure_aggregation.enabled", SECURE + "selection.kind = 'utility'"),
    ("privacy.secure_aggregation.enabled", SECURE + "strategy.name = 'fednova'"),
    ("privacy.secure_aggregation.enabled", SECURE + "run.update_norm_max = 1"),
    ("run.min_clients", "privacy.secure_aggregation.enabled = true"),
    ("run.cohort", SECURE + "simulation.clients = 10001"),
    ("simulation.executor", SECURE + "simulation.executor = 'vectorized'"),
    ("simulation.devices", SECURE + DEVICES),
    ("simulation.adversaries", SECURE + ADVERSARIES),
    ("compression", SECURE + "compression.upload = 'int8'"),
    ("compression", SECURE + "compression.upload = 'auto'"),
    ("privacy.secure_aggregation", SECURE + "privacy.secure_aggregation.bits = 16"),
    (f"{DP}.delta", CLIENT + f"{DP}.delta = 0.01"),
    (f"{DP}.population", CLIENT + f"{DP}.population = 5\nrun.cohort = 50"),
    (f"{DP}.sampling", CLIENT + "run.cohort = 2\nselection.min_separation = 2"),
    (
        "selection.min_separation",
        CLIENT
        + FIXED
        + f"{DP}.correlation = 'banded'\n{DP}.bands = 4\nrun.cohort = 2\nselection.min_separation = 3",
    ),
    (f"{DP}.noise", CLIENT + FIXED + f"{DP}.noise = 'distributed'"),
    (f"{DP}.noise", CLIENT + SECURE),
    (f"{DP}.enabled", CLIENT + "strategy.name = 'scaffold'"),
    (f"{DP}.enabled", CLIENT + "selection.kind = 'utility'"),
    (f"{DP}.enabled", CLIENT + "run.update_norm_max = 1"),
    (f"{DP}.enabled", CLIENT + STOPPING),
    (f"{DP}.enabled", CLIENT + "compression.upload = 'int8'"),
    (f"{DP}.enabled", CLIENT + "compression.upload = 'auto'"),
    (f"{DP}.enabled", CLIENT + ADVERSARIES),
    (f"{DP}.enabled", CLIENT + DEVICES),
    (f"{DP}.unit", SAMPLED + "strategy.name = 'scaffold'"),
    (f"{DP}.unit", SAMPLED + "training.gradient_clip_norm = 1.0"),
    (f"{DP}.unit", SAMPLED + "training.optimizer = 'torch.optim:NAdam'"),
    (f"{DP}.unit", SAMPLED + "training.precision = 'bf16'"),
    (f"{DP}.unit", SAMPLED + "selection.kind = 'utility'"),
    (f"{DP}.unit", SAMPLED + STOPPING),
]
OWNER: list[tuple[str, str]] = [
    ("data.index", "data = {index = 3, count = 3}"),
    ("device.device", "device.device = 'gpu'"),
    ("device.gpus", "device.gpus = 'some'"),
    ("device.gpus", "device.gpus = [0, 0]"),
    ("device.gpus", "device = {gpus = 0, device = 'cpu'}"),
    ("device.parallel", "device = {parallel = 'ddp', device = 'mps'}"),
    ("device.processes", "device = {gpus = [0, 1], parallel = 'ddp', processes = 3}"),
    ("device.hosts_listen", "device = {parallel = 'ddp', hosts = 2, hosts_listen = 'no port'}"),
    (
        "device.hosts",
        "device = {parallel = 'hybrid', hosts = 2, copy_parallel = 'pipeline', gpus = 'all'}",
    ),
    ("policy.allowed_apps", "policy.allowed_apps = ['sha256:12']"),
    ("policy.noise", "policy.noise = ['nowhere']"),
    ("policy.hours", "policy.hours = '8-9'"),
    ("server.addresses", "server.addresses = ['no port']"),
    ("policy.known_peers", "policy.known_peers = ['ed25519:12']"),
]
SERVER: list[tuple[str, str]] = [
    ("hosts", "hosts = []"),
    ("fleet_port", "fleet_port = 9444"),
    ("notify.url", "notify = {url = 'http://fl.example.org/hook', key_file = 'key'}"),
    ("notify.url", "notify = {url = 'https://fl.example.org/hook'}"),
    (
        "notify.url",
        "notify = {url = 'https://me:" + SECRET + "@fl.example.org/', key_file = 'key'}",
    ),
    ("notify.events", "notify.events = ['run_lost']"),
    ("notify.command", "notify.command = ['sendmail', 'ops@example.org']"),
]
FILES = {"meadow.toml": MEADOW, "client.toml": OWNER, "server.toml": SERVER}
MAKERS: dict[str, Any] = {
    "meadow.toml": make_config,
    "client.toml": make_client_config,
    "server.toml": make_server_config,
}
SCHEMAS = {"meadow.toml": Config, "client.toml": ClientConfig, "server.toml": ServerConfig}
CASES = [(file, key, text) for file, cases in FILES.items() for key, text in cases]
REMEDIES = (
    "must be",
    "must both be",
    "use ",
    "name ",
    "set ",
    "lower",
    "raise",
    "remove",
    "choose",
    "watch",
    "need",
    "write",
    "say ",
)


def refused(file: str, text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Rule[Any], str]:
    """Return the rule that refuses a file of this text, and its sentence."""
    broken: list[Rule[Any]] = []
    apply = Rule.broken_by

    def noted(rule: Rule[Any], checked: Any) -> str | None:
        sentence = apply(rule, checked)
        if sentence is not None:
            broken.append(rule)
        return sentence

    monkeypatch.setattr(Rule, "broken_by", noted)
    with pytest.raises(ConfigError) as caught:
        MAKERS[file](tomllib.loads(text), where=file)
    assert len(broken) == 1, f"refused by no rule: {caught.value}"
    return broken[0], str(caught.value)


def value_at(table: Any, key: str) -> Any:
    """Return what a table has at a dotted key, None if nothing."""
    for name in key.split("."):
        table = table.get(name) if isinstance(table, dict) else None
    return table


@pytest.mark.parametrize(("file", "key", "text"), CASES)
def test_a_refusal_names_file_key_value_and_remedy(
    file: str, key: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the sentence knows what to change, and to what."""
    _, sentence = refused(file, text, monkeypatch)
    assert sentence.startswith(f"{file}: {key} ")
    value = value_at(tomllib.loads(text), key)
    if SECRET in str(value):
        assert SECRET not in sentence
    elif isinstance(value, list) and value:
        assert str(value[0]) in sentence
    elif isinstance(value, bool):
        assert str(value).lower() in sentence
    elif value and not isinstance(value, dict | list):
        assert str(value).removesuffix(".0") in sentence
    assert any(word in sentence for word in REMEDIES), sentence
    assert "{" not in sentence and "found" not in sentence


@pytest.mark.parametrize(
    "text", [text for _, text in MEADOW if "{" not in text and "[" not in text]
)
def test_a_refusal_of_overrides_says_so(text: str) -> None:
    """It begins with --set and one of the keys that were given, also where another key is missing."""
    try:
        make_config({}, overrides=text.replace("'", "").splitlines())
    except ConfigError as error:
        given = [line.partition("=")[0].strip() for line in text.splitlines() if line]
        assert any(str(error).startswith(f"--set {key}") for key in given)
    else:
        raise AssertionError("it is not refused")


def declared(file: str) -> Iterator[Rule[Any]]:
    """Yield the rules of a file."""
    yield from own_rules(SCHEMAS[file], "")
    if file == "meadow.toml":
        yield from RULES


@pytest.mark.parametrize("file", FILES)
def test_every_rule_is_tried(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No rule is declared that refuses nothing, or that an earlier one hides."""
    tried = set()
    for _, text in FILES[file]:
        with monkeypatch.context() as patch:
            tried.add(refused(file, text, patch)[0].breach)
    assert [rule.keys for rule in declared(file) if rule.breach not in tried] == []


@pytest.mark.parametrize("file", FILES)
def test_rules_are_about_settings(file: str) -> None:
    """Each key of a rule is a setting or a table, and the documentation says what it needs."""
    page = (ROOT / "docs" / "configuration.md").read_text()
    for rule in declared(file):
        assert rule.needs in page
        for key in rule.keys:
            section: Any = SCHEMAS[file]()
            for name in key.split("."):
                assert hasattr(section, name) or section is None, key
                section = getattr(section, name, None)


REFUSING = {
    "config/schema/installed.py": "a name of two packages",
    "config/app_options.py": "the app's own keys, by the signature of its function",
    "config/client_config.py": "the key among the apps of client.toml, and a damaged list of them",
    "config/own_algorithm.py": "an app's own algorithm, by the signature of its builder",
    "config/rules/strategy.py": "an app's own algorithm that nobody has loaded",
    "config/sections/own_functions.py": "a function of the app's own that nobody has loaded",
    "config/schema/rules.py": "a declared rule",
    "config/schema/settings.py": "`refuse` itself",
    "config/schema/sources.py": "files, and keys that are not known",
    "config/schema/values.py": "a value's type and bounds, as declared",
}


def test_nothing_else_in_config_refuses() -> None:
    """A refusal comes from a declared rule, or from how files are read."""
    found = set()
    for path in sorted((ROOT / "config").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                "refuse",
                "ConfigError",
            ):
                found.add(str(path.relative_to(ROOT)))
    assert found == set(REFUSING)
