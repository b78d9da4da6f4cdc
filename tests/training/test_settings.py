"""What a train instruction says: read strictly, with a schedule of the learning rate."""

from __future__ import annotations

import math
from typing import Any

import pytest

from meadow.config.load import make_config
from meadow.config.rules.builders import evaluation_record, training_record
from meadow.errors import ProtocolError
from meadow.strategies.algorithms.catalogue import CATALOGUE
from meadow.training.settings import TrainingSettings


def test_every_key_that_a_server_sends_is_understood() -> None:
    """The record that a configuration makes is read back without loss."""
    values = {"training": {"optimizer": "adamw", "learning_rate": 0.02, "epochs": 3}}
    record = training_record(make_config(values))
    settings = TrainingSettings.of({**record, "server-round": 4, "proximal-mu": 0.5})
    kebab = {name.replace("_", "-") for name in TrainingSettings.__dataclass_fields__}
    trained = [entry for entry in CATALOGUE.values() if entry.optimizer != "none"]
    asked = {key for entry in trained for key in entry.builder(**entry.example).client_config}
    tuned = evaluation_record(make_config({"evaluation": {"tuning_epochs": 1}}))
    of_every_round = {"server-round", "repeat", "algorithm-arguments"}
    assert set(record) | asked | set(tuned) | of_every_round == kebab
    assert (settings.optimizer, settings.learning_rate, settings.epochs) == ("adamw", 0.02, 3)
    assert (settings.server_round, settings.proximal_mu) == (4, 0.5)


def test_other_peoples_keys_are_ignored() -> None:
    """A plain Flower strategy sends its own keys, and none of ours."""
    assert TrainingSettings.of({"lr": 0.1, "server-round": 2}).server_round == 2


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"epochs": 0}, r"epochs must be in \[1, 1000000000\], got 0"),
        ({"epochs": True}, "epochs must be of type int, got True"),
        ({"batch-size": 2.0}, "batch-size must be of type int"),
        ({"learning-rate": math.nan}, "learning_rate must be in"),
        ({"learning-rate": 1.1e12}, "learning_rate must be in"),
        ({"learning-rate": -0.1}, r"learning_rate must be in \[0, 1e\+12\]"),
        ({"optimizer": "rprop"}, "optimizer must be one of"),
        ({"precision": 16}, "precision must be of type str"),
        ({"algorithm": "sgd"}, "algorithm must be one of .* or as module:builder, got 'sgd'"),
        ({"algorithm": "os.path:join:x"}, "algorithm must be one of"),
        ({"beta-1": 1.5}, "beta_1 must be in"),
    ],
)
def test_impossible_settings_are_refused(record: dict[str, Any], sentence: str) -> None:
    """What a peer says is checked: type, bound and choice."""
    with pytest.raises(ProtocolError, match=sentence):
        TrainingSettings.of(record)


def rates(rounds: int, **settings: Any) -> list[float]:
    return [
        TrainingSettings(
            learning_rate=1.0, schedule_rounds=rounds, server_round=number, **settings
        ).learning_rate_now()
        for number in range(1, rounds + 1)
    ]


def test_schedules() -> None:
    """Constant, step and cosine, with values computed by hand."""
    assert rates(3) == [1.0, 1.0, 1.0]
    steps = rates(5, schedule="step", step_rounds=2, decay=0.5)
    assert steps == [1.0, 1.0, 0.5, 0.5, 0.25]
    half = 0.5 * (1 + math.cos(math.pi / 4))
    assert rates(4, schedule="cosine") == pytest.approx([1.0, half, 0.5, 1 - half])


def test_warm_up_rises_to_the_rate_and_the_schedule_follows() -> None:
    """Two rounds of warm-up take a third and two thirds; then the cosine begins at its top."""
    warmed = rates(6, schedule="cosine", warmup_rounds=2)
    assert warmed[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert warmed[2:] == sorted(warmed[2:], reverse=True)
