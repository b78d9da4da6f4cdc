"""[privacy.differential_privacy] with unit = "record": its plan, and what it cannot go with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import ConfigError
from ...privacy.dp.accounting.calibration import calibrate_noise
from ...privacy.dp.example_level import ExampleTerms
from ...privacy.dp.example_plan import ExamplePlan
from .builders import build_algorithm

if TYPE_CHECKING:
    from ..sections.model import Config

__all__ = ["build_example_plan", "example_rules"]

SECTION = "privacy.differential_privacy"
DELTA_MAX = 1e-2


def build_example_plan(config: Config) -> ExamplePlan:
    """Return the plan that the configuration asks for.

    Raises:
        ConfigError: no noise keeps the budget, or dp-accounting is needed and missing.
    """
    chosen, run, epochs = config.privacy.differential_privacy, config.run, config.training.epochs
    if chosen.sampling_rate is None:
        raise ConfigError(f'{SECTION}.unit = "record" needs sampling_rate')
    multiplier = chosen.noise_multiplier
    if multiplier is None:
        if chosen.epsilon is None:
            raise ConfigError(f"{SECTION} needs epsilon or noise_multiplier")
        some = ExampleTerms(clip=1.0, noise_multiplier=1.0, rate=chosen.sampling_rate)
        multiplier = calibrate_noise(
            epsilon=chosen.epsilon,
            delta=chosen.delta,
            rounds=run.rounds * some.steps(epochs),
            probability=chosen.sampling_rate,
        )
    return ExamplePlan(
        terms=ExampleTerms(
            clip=chosen.clip, noise_multiplier=multiplier, rate=chosen.sampling_rate
        ),
        delta=chosen.delta,
        rounds=run.rounds,
        epochs=epochs,
        epsilon_max=chosen.epsilon,
    )


def example_rules(config: Config) -> list[tuple[bool, tuple[str, ...], str]]:
    """Return what is wrong under example-level privacy: whether, which keys, and why."""
    chosen, training = config.privacy.differential_privacy, config.training
    unit, stopping = f"{SECTION}.unit", config.run.early_stopping
    said = (chosen.epsilon is not None) + (chosen.noise_multiplier is not None)
    alone = '= "record" trains clients by DP-SGD, and'
    return [
        (
            said != 1,
            (f"{SECTION}.epsilon", f"{SECTION}.noise_multiplier", f"{SECTION}.enabled"),
            "or noise_multiplier must be given, and not both: each follows from the other",
        ),
        (
            chosen.delta > DELTA_MAX,
            (f"{SECTION}.delta", unit),
            (
                f"= {chosen.delta:g} must be at most {DELTA_MAX:g} for examples: with that "
                "probability an example could be shown outright; lower it below 1 / a client's examples"
            ),
        ),
        (
            chosen.sampling_rate is None,
            (unit,),
            f"{alone} needs {SECTION}.sampling_rate, the share of examples in a step's batch",
        ),
        (
            config.strategy.name not in ("fedavg", "fedprox") or _sends_more(config),
            (unit, "strategy.name"),
            (
                f"{alone} clients of strategy {config.strategy.name!r} use their data for more than "
                'its steps; choose "fedavg" or "fedprox"'
            ),
        ),
        (
            training.gradient_clip_norm > 0 or training.accumulation_steps > 1,
            (unit, "training.gradient_clip_norm", "training.accumulation_steps"),
            (
                f"{alone} clips every example's gradient and makes one step of a batch; remove "
                "training.gradient_clip_norm and accumulation_steps"
            ),
        ),
        (
            training.precision != "fp32",
            (unit, "training.precision"),
            f'{alone} computes in fp32; set training.precision = "fp32"',
        ),
        (
            config.selection.kind != "uniform",
            (unit, "selection.kind"),
            f'{alone} no loss or other measure leaves a client; set selection.kind = "uniform"',
        ),
        (
            stopping is not None and not stopping.metric.startswith("server."),
            (unit, "run.early_stopping.metric"),
            f'{alone} no metric leaves a client; watch a "server." metric',
        ),
    ]


def _sends_more(config: Config) -> bool:
    return bool(build_algorithm(config).auxiliary)
