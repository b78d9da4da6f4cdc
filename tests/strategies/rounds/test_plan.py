"""Plans are checked when they are made."""

from __future__ import annotations

import pytest

from meadow.errors import ConfigError
from meadow.strategies.rounds.plan import RoundPlan
from meadow.strategies.rounds.progress import EarlyStopping


@pytest.mark.parametrize(
    ("argument", "value", "sentence"),
    [
        ("cohort", 0.0, "cohort must be > 0, got 0.0"),
        ("cohort", 1.5, "cohort must be <= 1, got 1.5"),
        ("cohort", 0, "cohort must be a whole number >= 1, got 0"),
        ("cohort", True, "cohort must be a whole number >= 1, got True"),
        ("min_clients", 0, "min_clients must be a whole number >= 1, got 0"),
        ("min_clients", 2.5, "min_clients must be a whole number >= 1, got 2.5"),
        ("deadline_s", 0, "deadline_s must be > 0, got 0"),
        ("deadline_s", float("inf"), "deadline_s must be a finite number, got inf"),
        ("seed", -1, "seed must be a whole number >= 0, got -1"),
        ("evaluate_every", -1, "evaluate_every must be a whole number >= 0, got -1"),
        ("update_norm_max", 0.0, "update_norm_max must be > 0, got 0.0"),
        ("update_norm_policy", "drop", "must be one of clip, reject, got 'drop'"),
    ],
)
def test_a_bad_plan_names_argument_bound_and_value(argument, value, sentence):
    """Each with the sentence that says what would be right."""
    with pytest.raises(ConfigError, match=sentence):
        RoundPlan(**{argument: value})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"metric": "loss"}, "early_stopping.metric must be train., evaluate. or server."),
        ({"metric": "client.loss"}, "early_stopping.metric must be"),
        ({"metric": "server."}, "early_stopping.metric must be"),
        ({"mode": "best"}, "early_stopping.mode must be one of max, min"),
        ({"patience": 0}, "early_stopping.patience must be a whole number >= 1, got 0"),
    ],
)
def test_bad_early_stopping_is_named(arguments, sentence):
    """A metric says whose it is."""
    with pytest.raises(ConfigError, match=sentence):
        EarlyStopping(**arguments)
