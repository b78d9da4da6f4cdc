"""All algorithms by their `strategy.name`, with the requirements of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .afl import afl
from .algorithm import Algorithm
from .analytics import analytics
from .boosted_trees import xgb_bagging, xgb_cyclic
from .ditto import ditto
from .fedavg import fedavg
from .fedbn import fedbn
from .feddyn import feddyn
from .fedlion import fedlion
from .fednova import fednova
from .fedper import fedper
from .fedprox import fedprox
from .fedrep import fedrep
from .ifca import ifca
from .lora import lora
from .newton import newton
from .qfedavg import qfedavg
from .scaffold import scaffold

__all__ = ["CATALOGUE", "Entry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An algorithm and its requirements.

    Attributes:
        builder: makes it; its module describes the algorithm and names the paper.
        arguments: argument of the builder -> key of [strategy].
        example: values for the arguments that have no default.
        client: what a client does beside training, as the rest of a sentence; empty for nothing.
        keeps: what a client keeps from round to round.
        optimizer: which local optimizers it goes with; "none" where clients take no steps of one.
        clippable: whether what clients send survives the clipping of secure aggregation: changes
            of params and the like do, counts do not.
        personal: whether clients have params of their own: they are evaluated too, and trained one
            by one, not in one tensor.
        together: whether a cohort can be trained in one tensor.
        single: whether only one client may be asked in a round.
    """

    builder: Callable[..., Algorithm]
    arguments: Mapping[str, str]
    example: Mapping[str, Any] = field(default_factory=dict)
    client: str = ""
    keeps: str = "nothing"
    optimizer: Literal["any", "sgd", "plain sgd", "none"] = "any"
    clippable: bool = True
    personal: bool = False
    together: bool = True
    single: bool = False

    def build(self, said: Mapping[str, Any]) -> Algorithm:
        """Return the algorithm with its arguments from the keys of [strategy].

        Raises:
            ConfigError: an argument is out of its bounds.
        """
        return self.builder(**{name: said[key] for name, key in self.arguments.items()})


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_TREES = _same("objective", "tree_depth", "tree_learning_rate", "tree_classes")

CATALOGUE: Mapping[str, Entry] = {
    "fedavg": Entry(
        builder=fedavg,
        arguments=_same(
            "server_optimizer", "server_learning_rate", "server_momentum", "beta_1", "beta_2", "tau"
        ),
    ),
    "fedprox": Entry(
        builder=fedprox,
        arguments=_same("proximal_mu"),
        client="adds a proximal term to its gradients",
    ),
    "scaffold": Entry(
        builder=scaffold,
        arguments=_same("server_learning_rate", "participation"),
        client="adds control variates to its gradients",
        keeps="a control variate as large as the params",
        optimizer="plain sgd",
    ),
    "fednova": Entry(
        builder=fednova,
        arguments=_same("server_learning_rate"),
        client="divides its delta by its steps, and counts them",
        optimizer="sgd",
        clippable=False,
    ),
    "feddyn": Entry(
        builder=feddyn,
        arguments={"alpha": "dynamic_alpha", "participation": "participation"},
        client="adds a linear and a proximal term to its gradients",
        keeps="a gradient as large as the params",
    ),
    "qfedavg": Entry(
        builder=qfedavg,
        arguments={"q": "fairness_q"},
        client="measures its loss before",
        optimizer="sgd",
        clippable=False,
    ),
    "afl": Entry(
        builder=afl,
        arguments=_same("mixture_learning_rate"),
        client="measures its loss before",
        keeps="one number",
        clippable=False,
    ),
    "fedlion": Entry(
        builder=fedlion,
        arguments={"beta_1": "lion_beta_1", "beta_2": "lion_beta_2"},
        client="steps by Lion, from a shared momentum",
        optimizer="sgd",
    ),
    "fedper": Entry(
        builder=fedper,
        arguments=_same("private"),
        example={"private": ["out.*"]},
        client="trains all layers, and answers with the shared ones",
        keeps="the private layers",
        personal=True,
    ),
    "fedrep": Entry(
        builder=fedrep,
        arguments=_same("private", "head_epochs"),
        example={"private": ["out.*"]},
        client="trains its private layers, then the shared ones, and answers with those",
        keeps="the private layers",
        personal=True,
    ),
    "fedbn": Entry(
        builder=fedbn,
        arguments={},
        client="trains all layers, and answers with all but the batch norms",
        keeps="the batch norms",
        personal=True,
    ),
    "ditto": Entry(
        builder=ditto,
        arguments=_same("ditto_lambda"),
        client="trains twice: the common params, and its own",
        keeps="params of its own",
        personal=True,
    ),
    "ifca": Entry(
        builder=ifca,
        arguments=_same("clusters", "cluster_spread", "seed"),
        client="measures its loss under every cluster's params, and trains the best",
        clippable=False,
        personal=True,
    ),
    "lora": Entry(
        builder=lora,
        arguments=_same("adapters"),
        example={"adapters": ["out.*"]},
        client="trains the adapters on a base model of its own",
        together=False,
    ),
    "newton": Entry(
        builder=newton,
        arguments=_same("ridge", "server_learning_rate"),
        client="answers with its loss's mean gradient and Hessian",
        optimizer="none",
        clippable=False,
    ),
    "xgb_bagging": Entry(
        builder=xgb_bagging,
        arguments=_TREES,
        client="grows trees on the common model, and answers with those",
        optimizer="none",
    ),
    "xgb_cyclic": Entry(
        builder=xgb_cyclic,
        arguments={**_TREES, **_same("tree_rounds")},
        client="grows trees on the common model, and answers with the whole",
        optimizer="none",
        single=True,
    ),
    "analytics": Entry(
        builder=analytics,
        arguments=_same("columns", "bins", "quantiles", "rows_min"),
        example={"columns": ["age=0:120"]},
        client="counts the rows of its data that lie below some points",
        optimizer="none",
    ),
}
