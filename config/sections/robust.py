"""[robust]: what replaces the mean of the updates where some clients may be adversaries."""

from __future__ import annotations

from dataclasses import dataclass

from ...strategies.algorithms.builders import REFERENCE
from ..schema.installed import RULES
from ..schema.settings import setting

__all__ = ["RobustConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustConfig:
    """[robust]: naming this table at all turns it on; docs/robust-aggregation.md says more."""

    aggregation: str = setting(
        "trimmed_mean",
        'what is made of the updates; every client counts the same. "module:function", or a name that '
        "an installed package registers, is one of your own: docs/own-algorithms.md",
        choices=(
            "mean",
            "median",
            "trimmed_mean",
            "geometric_median",
            "centred_clipping",
            "krum",
            "multi_krum",
            "bulyan",
            "mda",
            "fltrust",
        ),
        or_like=("module:function", REFERENCE),
        installed=RULES,
    )
    byzantine: int = setting(
        1,
        "f: so many of a round's clients may be adversaries; each rule needs a number of honest "
        "ones beside, which run.min_clients must guarantee",
        at_least=0,
        at_most=10**6,
    )
    preaggregation: tuple[str, ...] = setting(
        (),
        'what is done to the updates before, in this order: "clip", "adaptive_clip", "nnm" '
        '(nearest neighbour mixing) or "bucketing"',
    )
    clip_norm: float | None = setting(
        None,
        "the L2 norm that clip and centred_clipping clip to",
        above=0,
    )
    bucket_size: int = setting(2, "updates in a bucket", at_least=2, at_most=10**6)
    iterations: int = setting(
        3,
        "steps towards the centre",
        at_least=1,
        at_most=1000,
        only={"aggregation": ("geometric_median", "centred_clipping")},
    )
    trusted: int | None = setting(
        None,
        "the client whose update fltrust trusts: its number, as in clients.jsonl; in a "
        "simulation they begin at 1",
        at_least=1,
        only={"aggregation": ("fltrust",)},
    )
