"""Both halves of an algorithm stand in its builder: no table of names says what clients do."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import meadow
from meadow.errors import ProtocolError
from meadow.strategies.algorithms.catalogue import CATALOGUE
from meadow.task import Task
from meadow.training.algorithms.algorithms import LocalAlgorithm
from meadow.training.algorithms.client_half import ClientHalf, client_half
from meadow.training.algorithms.personalization import Personalization
from meadow.training.settings import TrainingSettings

PACKAGE = Path(meadow.__file__).parent
TASK = Task(
    model=lambda: torch.nn.Linear(1, 1),
    client_data=lambda site: None,  # type: ignore[arg-type,return-value]
    loss=lambda outputs, targets: outputs.sum(1),
)


@pytest.mark.parametrize("name", CATALOGUE)
def test_clients_do_what_the_builder_says(name: str) -> None:
    """Without a client's half they are told to train plainly; with one they are told its name."""
    algorithm = CATALOGUE[name].build_example()
    said = algorithm.client_config.get("algorithm", "plain")
    assert said == (name if algorithm.client else "plain")
    half = client_half(TrainingSettings(algorithm=said), TASK)
    assert isinstance(half, ClientHalf)
    if algorithm.client:
        module, _, class_name = algorithm.client.partition(":")
        assert (type(half).__module__, type(half).__name__) == (module, class_name)
    assert isinstance(half, Personalization) == CATALOGUE[name].personal
    if isinstance(half, LocalAlgorithm):
        assert set(half.auxiliary) <= set(algorithm.auxiliary)


@pytest.mark.parametrize("folder", ["training", "simulations", "client", "server", "run"])
def test_nobody_asks_for_the_name_of_an_algorithm(folder: str) -> None:
    """No text of these folders' code is the name of one that has a client's half: what depends on it
    is the half's."""
    halves = {name for name, entry in CATALOGUE.items() if entry.build_example().client}
    for file in (PACKAGE / folder).rglob("*.py"):
        texts = {
            node.value
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not texts & halves, file


class Half(LocalAlgorithm):
    """One that a reference names."""


def of(client: Any) -> Task:
    """Return the task of an app whose own algorithm has this client's half."""
    made = replace(meadow.averaging("own"), client=client)
    return replace(TASK, algorithm=lambda name, arguments: made)


OWN = TrainingSettings(algorithm="own:own", learning_rate=0.5)


def test_an_apps_own_may_name_its_half_too() -> None:
    """A reference, as of Meadow's own, or an object; each is bound to the round's settings."""
    for client in (f"{__name__}:Half", Half()):
        half = client_half(OWN, of(client))
        assert type(half).__name__ == "Half"
        assert isinstance(half, LocalAlgorithm) and half.settings is OWN


def test_what_is_no_half_is_a_sentence() -> None:
    """Nothing else is run for it."""
    for client in (None, 3, "builtins:dict"):
        with pytest.raises(ProtocolError, match="'own:own' has no client's half"):
            client_half(OWN, of(client))
    with pytest.raises(ProtocolError, match=r"is none of Meadow's, and this app"):
        client_half(OWN, TASK)
