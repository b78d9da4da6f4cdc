"""The sections of meadow.toml: every key, its type, default, bounds and meaning.

docs/configuration.md is made from this file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .settings import setting

__all__ = [
    "AppConfig",
    "DevicesConfig",
    "DifferentialPrivacyConfig",
    "EarlyStoppingConfig",
    "EvaluationConfig",
    "PrivacyConfig",
    "RunConfig",
    "SecureAggregationConfig",
    "SimulationConfig",
    "StrategyConfig",
    "TrainingConfig",
]

SEED_MAX = (1 << 63) - 1
_ADAPTIVE = ("adagrad", "adam", "yogi")
_FEDAVG = {"name": ("fedavg",)}
_SECURE = {"enabled": (True,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AppConfig:
    """[app]: the code."""

    task: str = setting("task:task", "where the `Task` is, as module:name, in the app's folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStoppingConfig:
    """[run.early_stopping]: naming this table at all turns it on."""

    metric: str = setting(
        "evaluate.loss", "what is watched: train., evaluate. or server. and a metric's name"
    )
    mode: Literal["min", "max"] = setting("min", "whether less or more is better")
    patience: int = setting(
        5, "stop after this many evaluated rounds without a better value", at_least=1, at_most=10**6
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """[run]: rounds, and who takes part in them."""

    rounds: int = setting(10, "how many rounds are run", at_least=1, at_most=10**6)
    seed: int = setting(
        0, "decides cohorts, batches and initial params", at_least=0, at_most=SEED_MAX
    )
    cohort: float | int = setting(
        1.0,
        "who trains in a round: a fraction in (0, 1] of the clients, or a whole number of them "
        "(1.0 is everybody, 1 is one client)",
        above=0,
        at_most=10**9,
    )
    min_clients: int = setting(
        2,
        "a round starts when this many clients are there, and counts when this many answered",
        at_least=1,
        at_most=10**9,
    )
    deadline_s: float = setting(
        600.0, "a round ends after this time if its quorum is met", above=0, at_most=30 * 86400
    )
    early_stopping: EarlyStoppingConfig | None = None
    update_norm_max: float | None = setting(
        None, "the largest L2 norm of a client's change of the params", above=0
    )
    update_norm_policy: Literal["reject", "clip"] = setting(
        "reject",
        "what happens to an update beyond it",
        only={"update_norm_max": ()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyConfig:
    """[strategy]: the algorithm, and its arguments."""

    name: Literal["fedavg", "fedprox"] = setting("fedavg", "the algorithm")
    server_optimizer: Literal["sgd", "adagrad", "adam", "yogi"] = setting(
        "sgd",
        "how the server applies the mean update: sgd is FedAvg (FedAvgM with momentum), the "
        "others are FedAdagrad, FedAdam and FedYogi",
        only=_FEDAVG,
    )
    server_learning_rate: float | None = setting(
        None,
        "the server optimizer's step; if absent 1 for sgd, 0.01 for yogi, else 0.1",
        above=0,
        only=_FEDAVG,
    )
    server_momentum: float | None = setting(
        None,
        "FedAvgM's momentum; none if absent",
        at_least=0,
        below=1,
        only={**_FEDAVG, "server_optimizer": ("sgd",)},
    )
    beta_1: float | None = setting(
        None,
        "decay of the first moment; if absent 0 for adagrad, else 0.9",
        at_least=0,
        below=1,
        only={**_FEDAVG, "server_optimizer": _ADAPTIVE},
    )
    beta_2: float | None = setting(
        None,
        "decay of the second moment; 0.99 if absent",
        at_least=0,
        below=1,
        only={**_FEDAVG, "server_optimizer": ("adam", "yogi")},
    )
    tau: float | None = setting(
        None,
        "added to the root of the second moment: larger is less adaptive; 0.001 if absent",
        above=0,
        only={**_FEDAVG, "server_optimizer": _ADAPTIVE},
    )
    proximal_mu: float = setting(
        0.01, "FedProx's pull towards the global params", at_least=0, only={"name": ("fedprox",)}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """[training]: what a client does in a round."""

    epochs: int = setting(1, "passes over the client's data", at_least=1, at_most=10**6)
    batch_size: int = setting(32, "examples a step", at_least=1, at_most=10**9)
    optimizer: Literal["sgd", "adam", "adamw"] = setting(
        "sgd",
        "the local optimizer, fresh every round",
    )
    learning_rate: float = setting(0.01, "its step", above=0)
    momentum: float = setting(
        0.0, "its momentum", at_least=0, below=1, only={"optimizer": ("sgd",)}
    )
    weight_decay: float = setting(0.0, "the L2 penalty; decoupled for adamw", at_least=0)
    beta_1: float = setting(
        0.9,
        "decay of the first moment",
        at_least=0,
        below=1,
        only={"optimizer": ("adam", "adamw")},
    )
    beta_2: float = setting(
        0.999,
        "decay of the second moment",
        at_least=0,
        below=1,
        only={"optimizer": ("adam", "adamw")},
    )
    epsilon: float = setting(
        1e-8,
        "what is added to the root of the second moment",
        above=0,
        only={"optimizer": ("adam", "adamw")},
    )
    schedule: Literal["constant", "cosine", "step"] = setting(
        "constant",
        "how the learning rate changes from round to round",
    )
    warmup_rounds: int = setting(
        0, "the learning rate rises linearly over these first rounds", at_least=0, at_most=10**6
    )
    step_rounds: int = setting(
        10,
        "rounds between two steps down",
        at_least=1,
        at_most=10**6,
        only={"schedule": ("step",)},
    )
    decay: float = setting(
        0.1,
        "what the learning rate is multiplied by at each step",
        above=0,
        at_most=1,
        only={"schedule": ("step",)},
    )
    gradient_clip_norm: float = setting(
        0.0, "the largest L2 norm of a step's gradient; 0 is no limit", at_least=0
    )
    accumulation_steps: int = setting(
        1, "batches whose gradients make one step", at_least=1, at_most=10**6
    )
    precision: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32",
        "what the forward pass computes in",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """[evaluation]: on the clients' test data, and on the server's if the task has any."""

    every: int = setting(1, "rounds between evaluations; 0 is never", at_least=0, at_most=10**6)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """[simulation]: only `meadow simulate` reads it."""

    clients: int = setting(
        100,
        "how many clients are simulated; if absent, no fewer than a round needs",
        at_least=1,
        at_most=10**7,
    )
    partition: Literal["iid", "dirichlet", "shards", "size", "natural", "feature"] = setting(
        "iid",
        "how a data set is divided among them; docs/data.md says how each does it",
    )
    alpha: float = setting(
        0.5,
        "the skew of the division; towards 0 is more uneven",
        above=0,
        at_most=1e6,
        only={"partition": ("dirichlet", "size")},
    )
    classes_per_client: int = setting(
        2, "shards each client gets", at_least=1, at_most=10**6, only={"partition": ("shards",)}
    )
    min_samples: int = setting(
        1, "the least that any client's share has", at_least=1, at_most=10**9
    )
    noise_variance: float = setting(
        0.1,
        "client i of n sees its inputs through Gaussian noise of this variance times i / n",
        at_least=0,
        only={"partition": ("feature",)},
    )
    executor: Literal["auto", "sequential", "vectorized", "processes", "ray"] = setting(
        "auto",
        "what runs the clients: one after another, all in one tensor, in worker processes, or on "
        "a Ray cluster; auto times a few clients and picks",
    )
    workers: int | None = setting(
        None,
        "worker processes; one a core if absent",
        at_least=1,
        at_most=4096,
        only={"executor": ("processes", "ray")},
    )
    address: str | None = setting(
        None, "the Ray cluster; one of its own if absent", only={"executor": ("ray",)}
    )
    devices: DevicesConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureAggregationConfig:
    """[privacy.secure_aggregation]: the server sees only sums of updates."""

    enabled: bool = setting(
        False, "whether it is used; docs/secure-aggregation.md says against whom"
    )
    corrupt_fraction: float = setting(
        0.33,
        "so many of a cohort may collude with the server and learn nothing",
        at_least=0,
        below=1,
        only=_SECURE,
    )
    dropout_fraction: float = setting(
        0.3, "so many of a cohort may drop out of a round", at_least=0, below=1, only=_SECURE
    )
    clip: float = setting(
        1.0,
        "the largest change of a single param by a client; larger ones are clipped",
        above=0,
        at_most=1e6,
        only=_SECURE,
    )
    value_bits: int = setting(
        16, "bits of a clipped change, before it is summed", at_least=2, at_most=24, only=_SECURE
    )
    bits: int = setting(
        32, "bits of a sum, and of a value on the wire", at_least=8, at_most=32, only=_SECURE
    )
    weight_max: int | None = setting(
        None,
        "a client with more examples counts as this many; if absent, as many as leave room for "
        "the cohort: 2^(bits - value_bits) divided by it",
        at_least=1,
        at_most=1 << 24,
        only=_SECURE,
    )
    metrics_max: float = setting(
        100.0,
        "the largest metric of a client, and change of an integer param; larger ones are clipped",
        above=0,
        at_most=1e9,
        only=_SECURE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentialPrivacyConfig:
    """[privacy.differential_privacy]: noise bounds what a model tells about one client."""

    enabled: bool = setting(
        False,
        "whether it is used; true is not available in this version",
        choices=(False,),
        unavailable={
            True: "is not available in this version of Meadow, so the model would carry no "
            "guarantee; set it to false if that is acceptable"
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyConfig:
    """[privacy]: what protects the clients beyond their data staying where it is."""

    secure_aggregation: SecureAggregationConfig = field(default_factory=SecureAggregationConfig)
    differential_privacy: DifferentialPrivacyConfig = field(
        default_factory=DifferentialPrivacyConfig
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesConfig:
    """[simulation.devices]: naming this table at all turns the virtual clock on."""

    examples_per_s: float = setting(
        1000.0, "the median of the clients' speeds in training", above=0, at_most=10**12
    )
    examples_per_s_spread: float = setting(
        0.5,
        "how much they differ: the standard deviation of their natural logarithm; 0 is not at all",
        at_least=0,
        at_most=10,
    )
    download_bytes_per_s: float = setting(
        2.5e6, "the median of what clients receive in a second", above=0, at_most=10**15
    )
    upload_bytes_per_s: float = setting(
        1e6, "the median of what clients send in a second", above=0, at_most=10**15
    )
    bandwidth_spread: float = setting(
        0.5, "how much either differs, likewise", at_least=0, at_most=10
    )
    latency_s: float = setting(
        0.1, "what is added to every answer's time", at_least=0, at_most=86400
    )
    speeds: str | None = setting(
        None,
        "a CSV file in the app's folder with the columns client, examples_per_s, "
        "download_bytes_per_s and upload_bytes_per_s: what is not drawn",
    )
    available_share: float | None = setting(
        None,
        "the share of the time that a client is there, now and then; always if absent",
        at_least=0.001,
        at_most=1,
    )
    period_s: float = setting(
        3600.0,
        "the mean time from one coming to the next; each client's is between half and one and "
        "a half of it",
        at_least=1,
        at_most=10**9,
        only={"available_share": ()},
    )
    trace: str | None = setting(
        None,
        "instead, a CSV file in the app's folder with the columns client, start_s and end_s: when "
        "each is there; it begins anew when its last period is over",
    )
    dropout: float = setting(
        0.0, "the probability that a client that is asked never answers", at_least=0, at_most=1
    )
    failure: float = setting(
        0.0, "the probability that one that answers does so with an error", at_least=0, at_most=1
    )
    examples: int = setting(
        100, "the examples of a client that does not say its number", at_least=1, at_most=10**9
    )
