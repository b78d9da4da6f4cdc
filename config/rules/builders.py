"""What a config stands for: the objects and the records that are made of its sections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...partitioning.partition import Partition
from .rounds import build_asynchrony
from .strategy import build_algorithm, build_rule

if TYPE_CHECKING:
    from ...compression.terms import CompressionTerms
    from ...privacy.dp.noise_terms import NoiseTerms
    from ...privacy.secagg.terms.terms import SecureTerms
    from ..sections.model import Config

__all__ = [
    "build_algorithm",
    "build_asynchrony",
    "build_compression_terms",
    "build_partition",
    "build_rule",
    "build_secure_terms",
    "evaluation_record",
    "training_record",
]


def build_secure_terms(
    config: Config, *, metrics: Sequence[str], noise: NoiseTerms | None = None
) -> SecureTerms:
    """Return the public numbers of a run's secure sums, and which metrics are in them.

    With `noise`, the clients add it to the sums, and there are no metrics.
    """
    from ...privacy.secagg.terms.terms import SecureTerms

    chosen = config.privacy.secure_aggregation
    return SecureTerms(
        corrupt=chosen.corrupt_fraction,
        dropout=chosen.dropout_fraction,
        bits=chosen.bits,
        value_bits=chosen.value_bits,
        value_bound=chosen.value_bound,
        weight_max=chosen.weight_max,
        metrics=() if noise is not None else tuple(sorted(metrics)),
        metrics_max=chosen.metrics_max,
        group_size=chosen.group_size,
        clip_norm=None if noise is None else config.privacy.differential_privacy.clip_norm,
        noise_multiplier=None if noise is None else noise.noise_multiplier,
        noise_law="skellam" if noise is None else noise.law,
    )


def build_compression_terms(config: Config) -> CompressionTerms | None:
    """Return how [compression] says that messages are compressed; None if it is not there."""
    from ...compression.terms import CompressionTerms

    chosen = config.compression
    if chosen is None:
        return None
    return CompressionTerms(
        upload=chosen.upload,
        download=chosen.download,
        fraction=chosen.fraction,
        rank=chosen.rank,
        zstd=chosen.zstd,
        seed=config.run.seed,
    )


def build_partition(config: Config) -> Partition:
    """Return the division of a data set that [simulation] names."""
    chosen = config.simulation
    return Partition(
        kind=chosen.partition,
        alpha=chosen.alpha,
        classes_per_client=chosen.classes_per_client,
        min_samples=chosen.min_samples,
        noise_variance=chosen.noise_variance,
    )


def evaluation_record(config: Config) -> dict[str, int | float | str]:
    """Return the entries of an evaluate instruction's ConfigRecord that the configuration decides."""
    if epochs := config.evaluation.tuning_epochs:
        return {**training_record(config), "tuning-epochs": epochs}
    return {"batch-size": config.training.batch_size, "seed": config.run.seed}


def training_record(config: Config) -> dict[str, int | float | str]:
    """Return the entries of a train instruction's ConfigRecord that [training] decides.

    The strategy adds "server-round" and what its algorithm tells clients ("proximal-mu").
    """
    training = config.training
    return {
        "epochs": training.epochs,
        "batch-size": training.batch_size,
        "optimizer": training.optimizer,
        "learning-rate": training.learning_rate,
        "momentum": training.momentum,
        "weight-decay": training.weight_decay,
        "beta-1": training.beta_1,
        "beta-2": training.beta_2,
        "epsilon": training.epsilon,
        "schedule": "constant" if ":" in training.schedule else training.schedule,
        "schedule-rounds": config.run.rounds,
        "warmup-rounds": training.warmup_rounds,
        "step-rounds": training.step_rounds,
        "decay": training.decay,
        "gradient-clip-norm": training.gradient_clip_norm,
        "accumulation-steps": training.accumulation_steps,
        "precision": training.precision,
        "seed": config.run.seed,
    }
