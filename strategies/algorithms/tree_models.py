"""XGBoost's models as JSON: put together, and looked at before anything is taken from them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["bagged", "fault_in_model"]

TREES_MAX = 1_000_000


def bagged(before: bytes, after: Sequence[bytes]) -> bytes:
    """Return a model with the trees of others added, each one's as a boosting round.

    With no model before, the first of the others is what they are added to.
    """
    if not before:
        before, *after = after
    whole = json.loads(before)
    model = _gbtree(whole)
    for each in after:
        other = _gbtree(json.loads(each))
        start = len(model["trees"])
        for place, tree in enumerate(other["trees"]):
            model["trees"].append({**tree, "id": start + place})
        model["tree_info"] += other["tree_info"]
        model["iteration_indptr"].append(len(model["trees"]))
        model["gbtree_model_param"]["num_trees"] = str(len(model["trees"]))
    return json.dumps(whole).encode()


def fault_in_model(raw: bytes) -> str | None:
    """Say why a client's bytes are no model that trees can be taken from."""
    try:
        model = _gbtree(json.loads(raw))
        trees, info = model["trees"], model["tree_info"]
        fits = (
            isinstance(trees, list)
            and isinstance(info, list)
            and isinstance(model["iteration_indptr"], list)
            and isinstance(model["gbtree_model_param"], dict)
            and 0 < len(trees) == len(info) <= TREES_MAX
            and all(isinstance(tree, dict) and _is_sound(tree) for tree in trees)
            and all(type(group) is int for group in info)
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        fits = False
    return None if fits else "is no XGBoost model of trees in JSON"


def _is_sound(tree: Mapping[str, Any]) -> bool:
    """Whether a tree's children are nodes after their parents, and its leaves finite numbers."""
    left, right = tree["left_children"], tree["right_children"]
    conditions = tree["split_conditions"]
    return len(left) == len(right) == len(conditions) > 0 and all(
        math.isfinite(value) and ((a == b == -1) or (node < a < len(left) and node < b < len(left)))
        for node, (a, b, value) in enumerate(zip(left, right, conditions, strict=True))
    )


def _gbtree(whole: Any) -> Any:
    return whole["learner"]["gradient_booster"]["model"]
