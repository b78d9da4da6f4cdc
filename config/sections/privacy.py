"""[privacy]: what protects the clients beyond their data staying where it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from ...privacy.dp.plan_rules import budget_rule, clipping_rule, correlation_rule, sampling_rule
from ..schema.rules import Rule
from ..schema.settings import RenamedFields, setting

__all__ = ["DifferentialPrivacyConfig", "PrivacyConfig", "SecureAggregationConfig"]

_SECURE = {"enabled": (True,)}
_PRIVATE = {"enabled": (True,)}
_CLIENT = {**_PRIVATE, "unit": ("client",)}
_RECORD = {**_PRIVATE, "unit": ("record",)}
_ADAPTIVE = {**_CLIENT, "clipping": ("adaptive",)}
EXAMPLE_DELTA_MAX = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureAggregationConfig(RenamedFields):
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
    value_bound: float = setting(
        1.0,
        "the largest absolute delta of a single param; larger ones are clipped",
        above=0,
        at_most=1e6,
        was="clip",
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
    group_size: int | None = setting(
        None,
        "a sum for each group of at least so many clients, drawn at random every round: a "
        "strategy that needs single updates takes the groups'; if absent one sum of the cohort",
        at_least=3,
        at_most=10_000,
        only=_SECURE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentialPrivacyConfig(RenamedFields):
    """[privacy.differential_privacy]: noise bounds what a model tells about one client or record."""

    enabled: bool = setting(
        False, "whether it is used; docs/differential-privacy.md says what it promises"
    )
    unit: Literal["client", "record"] = setting(
        "client",
        "what is hidden: a client with all of its data, or each of a client's records, which then "
        "trains by DP-SGD",
        only=_PRIVATE,
    )
    epsilon: float | None = setting(
        None,
        "what the whole run may spend; the noise is chosen for it",
        above=0,
        at_most=1000,
        only=_PRIVATE,
    )
    noise_multiplier: float | None = setting(
        None,
        "the noise itself, instead of epsilon: its standard deviation divided by clip_norm",
        above=0,
        at_most=1e5,
        only=_PRIVATE,
    )
    delta: float = setting(
        1e-6,
        "the probability with which epsilon may not hold; less than 1 / population",
        above=0,
        below=1,
        only=_PRIVATE,
    )
    clip_norm: float = setting(
        1.0,
        "the largest L2 norm of a client's delta, with adaptive clipping at first; "
        "with records as the unit, of a record's gradient",
        above=0,
        at_most=1e6,
        was="clip",
        only=_PRIVATE,
    )
    clipping: Literal["fixed", "adaptive", "per_layer"] = setting(
        "fixed",
        "whether clip_norm stays, follows target_quantile, or is divided among the tensors",
        only=_CLIENT,
    )
    target_quantile: float = setting(
        0.5, "the share of clients within clip_norm", at_least=0, at_most=1, only=_ADAPTIVE
    )
    clip_learning_rate: float = setting(
        0.2, "how fast clip_norm follows it", above=0, at_most=10, only=_ADAPTIVE
    )
    count_noise_stddev: float | None = setting(
        None,
        "standard deviation of the noise on the number of clients within clip_norm, in clients; a "
        "20th of the cohort if absent",
        above=0,
        at_most=1e9,
        was="count_noise",
        only=_ADAPTIVE,
    )
    noise: Literal[
        "server", "distributed", "distributed_gaussian", "local_gaussian", "local_laplace"
    ] = setting(
        "server",
        "who adds it, and where: the server, to the sum; distributed: the clients, within secure "
        "sums, Skellam or discrete Gaussian; local: each client, to its own delta",
        only=_CLIENT,
    )
    sampling: Literal["poisson", "fixed"] = setting(
        "poisson",
        "poisson: every client takes part by its own secret coin, which amplifies privacy; fixed: "
        "cohorts are drawn as without privacy, and nothing is amplified",
        only=_CLIENT,
    )
    correlation: Literal["none", "banded", "tree"] = setting(
        "none",
        "whether a round's noise takes back noise of earlier rounds (DP-FTRL), so that there is less "
        "in the end: of the last few, or by a tree; needs selection.min_separation",
        only=_CLIENT,
    )
    bands: int | None = setting(
        None,
        "how many rounds hang together; one less is kept in memory, each as large as the params in "
        "float32. The smaller of selection.min_separation and 32 if absent",
        at_least=2,
        at_most=10**5,
        only={**_CLIENT, "correlation": ("banded",)},
    )
    population: int | None = setting(
        None,
        "how many clients there are: with run.cohort it says how probable it is to be drawn; "
        "simulation.clients if absent",
        at_least=1,
        at_most=10**9,
        only=_CLIENT,
    )
    sampling_rate: float | None = setting(
        None,
        "the probability with which a record is in a step's batch, in the place of "
        "training.batch_size; a round has epochs / sampling_rate steps",
        above=0,
        at_most=1,
        only=_RECORD,
    )

    rules: ClassVar[tuple[Rule[DifferentialPrivacyConfig], ...]] = (
        Rule(
            ("epsilon", "noise_multiplier", "enabled"),
            "enabled needs it or `noise_multiplier`, and not both",
            lambda dp: budget_rule(dp.epsilon, dp.noise_multiplier) if dp.enabled else None,
        ),
        Rule(
            ("unit", "sampling_rate"),
            '"record" needs `sampling_rate`',
            lambda dp: dp.unit == "record" and dp.sampling_rate is None,
            '= "record" trains clients by DP-SGD, and needs privacy.differential_privacy.'
            "sampling_rate, the share of examples in a step's batch; set it, for example to 0.01",
        ),
        Rule(
            ("delta", "unit"),
            f'at most {EXAMPLE_DELTA_MAX:g} with `unit = "record"`',
            lambda dp: dp.unit == "record" and dp.delta > EXAMPLE_DELTA_MAX,
            f"= {{delta:g}} must be at most {EXAMPLE_DELTA_MAX:g} for examples: with that probability "
            "an example could be shown outright; lower it below 1 / a client's examples",
        ),
        Rule(
            ("sampling", "noise"),
            '`noise` of clients needs "fixed"',
            lambda dp: sampling_rule(dp.sampling, dp.noise),
        ),
        Rule(
            ("clipping", "noise", "correlation"),
            '"adaptive" needs `noise = "server"` and `correlation = "none"`; local Laplace noise '
            'needs "fixed"',
            lambda dp: clipping_rule(dp.clipping, dp.noise, dp.correlation),
        ),
        Rule(
            ("correlation", "noise"),
            '"banded" and "tree" need `noise = "server"`',
            lambda dp: correlation_rule(dp.correlation, dp.noise),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyConfig:
    """[privacy]: what protects the clients beyond their data staying where it is."""

    secure_aggregation: SecureAggregationConfig = field(default_factory=SecureAggregationConfig)
    differential_privacy: DifferentialPrivacyConfig = field(
        default_factory=DifferentialPrivacyConfig
    )
