"""How many clients there are, how many a round draws, and what is measured of them."""

from __future__ import annotations

from ..schema.rules import Rule
from ..sections.model import Config
from ..sections.run import RunConfig
from ..sections.selection import SelectionConfig

__all__ = ["RULES", "clients_for_separation"]

CLIENTS = "simulation.clients"
TURNS = ("selection.min_separation", "selection.participations_max")


def clients_for_separation(chosen: SelectionConfig, run: RunConfig) -> int:
    """Return how many clients it takes that each of them waits, or takes part, as [selection] asks."""
    drawn = run.cohort if isinstance(run.cohort, int) else 1
    needed = drawn * min(chosen.min_separation, run.rounds)
    if chosen.participations_max is not None:
        needed = max(needed, -(-drawn * run.rounds // chosen.participations_max))
    return needed


def _by_turns(config: Config) -> bool:
    chosen = config.selection
    return chosen.min_separation > 1 or chosen.participations_max is not None


def _too_few_for_turns(config: Config) -> str | None:
    needed = clients_for_separation(config.selection, config.run)
    return f"at least {needed}" if needed > config.simulation.clients else None


def _unmeasured(config: Config) -> bool:
    stopping = config.run.early_stopping
    return (
        config.evaluation.every == 0
        and stopping is not None
        and not stopping.metric.startswith("train.")
    )


def _too_many_adversaries(config: Config) -> bool:
    attacked = config.simulation.adversaries
    return attacked is not None and attacked.count >= config.simulation.clients


RULES: tuple[Rule[Config], ...] = (
    Rule(
        ("run.min_clients", CLIENTS),
        f"at most `{CLIENTS}`",
        lambda config: config.run.min_clients > config.simulation.clients,
        "= {run.min_clients} is more than simulation.clients = {simulation.clients}: no round could "
        "ever count; lower min_clients or raise clients",
    ),
    Rule(
        ("run.cohort", CLIENTS),
        f"at most `{CLIENTS}`, if it is a number of clients",
        lambda config: (
            isinstance(config.run.cohort, int) and config.run.cohort > config.simulation.clients
        ),
        "= {run.cohort} is more than simulation.clients = {simulation.clients}; lower cohort or "
        "raise clients",
    ),
    Rule(
        ("simulation.adversaries", "compression"),
        "not beside [compression]",
        lambda config: None not in (config.compression, config.simulation.adversaries),
        "look at updates that compression hides; remove one of the two tables",
    ),
    Rule(
        ("simulation.executor", "compression"),
        'not "vectorized" beside [compression]',
        lambda config: (
            config.compression is not None and config.simulation.executor == "vectorized"
        ),
        '= "{simulation.executor}" trains a whole cohort at once, and nobody compresses anything; '
        'with [compression] it must be "sequential", "processes", "ray" or "auto"',
    ),
    Rule(
        ("simulation.adversaries.count", CLIENTS),
        f"less than `{CLIENTS}`",
        _too_many_adversaries,
        "= {simulation.adversaries.count} must be less than simulation.clients = "
        "{simulation.clients}: somebody has to be honest; lower count or raise clients",
    ),
    Rule(
        ("training.warmup_rounds", "run.rounds"),
        "at most `run.rounds`",
        lambda config: config.training.warmup_rounds > config.run.rounds,
        "= {training.warmup_rounds} is more than run.rounds = {run.rounds}: the learning rate would "
        "never arrive; lower warmup_rounds or raise rounds",
    ),
    Rule(
        ("run.early_stopping.metric", "evaluation.every"),
        'begins with "train." if `evaluation.every = 0`',
        _unmeasured,
        '= "{run.early_stopping.metric}" is never measured with evaluation.every = 0; set '
        'evaluation.every to 1, or watch "train.loss"',
    ),
    Rule(
        ("run.cohort", *TURNS),
        "a whole number with `min_separation` or `participations_max`",
        lambda config: (
            _by_turns(config)
            and config.rounds.kind == "synchronous"
            and not isinstance(config.run.cohort, int)
        ),
        "= {run.cohort} is a part of the clients, and those that took part lately are not drawn; "
        "with selection.min_separation or selection.participations_max write a whole number of "
        "clients",
    ),
    Rule(
        ("simulation.devices", *TURNS),
        "not with `min_separation` or `participations_max`",
        lambda config: _by_turns(config) and config.simulation.devices is not None,
        "come and go, and would have to wait beside; remove it, or selection.min_separation and "
        "selection.participations_max",
    ),
    Rule(
        (CLIENTS, *TURNS),
        "enough for all cohorts with `min_separation` or `participations_max`",
        _too_few_for_turns,
        "= {simulation.clients} must be {found} for {run.rounds} rounds of {run.cohort} clients that "
        "take part with min-separation; raise it, or lower run.cohort or selection.min_separation, or raise "
        "selection.participations_max",
    ),
)
