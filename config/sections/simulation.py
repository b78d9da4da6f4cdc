"""[simulation]: what only `meadow simulate` reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..schema.rules import Rule
from ..schema.settings import setting

__all__ = ["AdversariesConfig", "DevicesConfig", "SimulationConfig"]

_EVERYWHERE = ("", "CPU", "GPU", "memory", "object_store_memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdversariesConfig:
    """[simulation.adversaries]: naming this table at all lets the last clients attack the run."""

    kind: Literal[
        "sign_flip",
        "ipm",
        "alie",
        "min_max",
        "min_sum",
        "mimic",
        "gaussian",
        "label_flip",
        "backdoor",
    ] = setting("sign_flip", "what they do; docs/robust-aggregation.md says how each does it")
    count: int = setting(
        1,
        "so many of simulation.clients, the last ones, are adversaries; data are divided among the "
        "others",
        at_least=1,
        at_most=10**6,
    )
    strength: float | None = setting(
        None,
        "how often the honest mean (ipm), how many standard deviations (alie), or the noise's "
        "standard deviation (gaussian); if absent 2, 1.5 and 1",
        above=0,
        at_most=1e6,
        only={"kind": ("ipm", "alie", "gaussian")},
    )
    classes: int = setting(
        10,
        "label y becomes classes - 1 - y",
        at_least=2,
        at_most=10**6,
        only={"kind": ("label_flip",)},
    )
    target: int = setting(
        0,
        "what inputs with the trigger shall be taken for",
        at_least=0,
        at_most=10**6,
        only={"kind": ("backdoor",)},
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """[simulation]: only `meadow simulate` reads it."""

    clients: int = setting(
        100,
        "how many clients are simulated; if absent, no fewer than a round needs",
        at_least=1,
        at_most=10**7,
    )
    tags: tuple[str, ...] = setting(
        (),
        "which share of the clients has a tag, as `gpu=0.3`, for `selection.tags`",
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
        "a Ray cluster; auto times a few clients, compares what they trained, and picks",
    )
    verify: bool = setting(
        True,
        "whether a run whose clients are trained in one tensor begins by training two of them alone "
        "too, and fails if their params differ by more than rounding",
    )
    workers: int | None = setting(
        None,
        "worker processes, one a core if absent; vectorized divides a cohort among them, and uses "
        "none if absent",
        at_least=1,
        at_most=4096,
        only={"executor": ("vectorized", "processes", "ray")},
    )
    address: str | None = setting(
        None, "the Ray cluster; one of its own if absent", only={"executor": ("ray",)}
    )
    node_resource: str | None = setting(
        None,
        "a custom resource of Ray nodes: clients run only on those that have it, which have the "
        "clients' data",
        only={"executor": ("ray",)},
    )
    devices: DevicesConfig | None = None
    adversaries: AdversariesConfig | None = None

    rules: ClassVar[tuple[Rule[SimulationConfig], ...]] = (
        Rule(
            ("node_resource",),
            "a resource of one's own: not CPU, GPU, memory, object_store_memory",
            lambda said: said.node_resource is not None and said.node_resource in _EVERYWHERE,
            '= "{node_resource}" does not say where data are: Ray counts it on every node; name a '
            "resource of your own, which `ray start --resources` declares where they are",
        ),
    )
