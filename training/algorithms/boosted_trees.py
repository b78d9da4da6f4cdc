"""A client's half of boosted trees: it grows some on its data, with XGBoost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...errors import DataError
from ...strategies.algorithms.algorithm import Params
from ...strategies.algorithms.boosted_trees import TREES
from ..batches import batches_of
from ..evaluation import ExampleMeans
from .work_bench import LocalWork, WorkBench

if TYPE_CHECKING:
    from ...task import Data

__all__ = ["GrowTrees", "GrowWholeModel"]

BASE_SCORE = 0.5
"""What all models begin with: trees of sites that began elsewhere would not add up."""
BATCH = 4096


class GrowTrees(LocalWork):
    """Grows trees on the model that was sent; answers with the new trees alone."""

    whole = False
    """Whether it answers with the trees that were sent too."""

    def answer(self, bench: WorkBench, sent: Params) -> tuple[int, dict[str, float], Params]:
        """Return the number of examples, the new model's metrics, and its bytes.

        Raises:
            DataError: XGBoost is not installed, or refuses the data or the settings.
        """
        xgboost, rounds = _xgboost(), bench.configured("tree-rounds", int)
        inputs, targets = _table(bench.data.train)
        before = None
        try:
            if sent[TREES].size:
                before = _booster(xgboost, sent)
            booster = xgboost.train(
                _settings(bench),
                xgboost.DMatrix(inputs.numpy(), label=targets.numpy()),
                num_boost_round=rounds,
                xgb_model=before,
            )
            grown = booster if self.whole else booster[booster.num_boosted_rounds() - rounds :]
            raw = grown.save_raw("json")
        except xgboost.core.XGBoostError as error:
            raise DataError(f"XGBoost: {str(error).splitlines()[0][:200]}") from None
        model = np.frombuffer(bytes(raw), np.uint8)
        return len(targets), _metrics(bench, xgboost, booster, inputs, targets), {TREES: model}

    def measure(self, bench: WorkBench, sent: Params, data: Data) -> tuple[int, dict[str, float]]:
        """Return the number of examples, and the model's metrics."""
        xgboost, (inputs, targets) = _xgboost(), _table(data)
        booster = _booster(xgboost, sent)
        return len(targets), _metrics(bench, xgboost, booster, inputs, targets)


class GrowWholeModel(GrowTrees):
    """Answers with the whole model."""

    whole = True


def _xgboost() -> Any:
    try:
        import xgboost
    except ImportError:
        raise DataError(
            "boosted trees need XGBoost at every client: pip install 'meadow-fl[xgboost]'"
        ) from None
    return xgboost


def _settings(bench: WorkBench) -> dict[str, Any]:
    classes = bench.configured("tree-classes", int)
    return {
        "objective": bench.configured("tree-objective", str),
        "max_depth": bench.configured("tree-depth", int),
        "learning_rate": bench.configured("tree-learning-rate", float),
        "base_score": BASE_SCORE,
        "tree_method": "hist",
        "nthread": torch.get_num_threads(),
        "seed": bench.settings.seed % (1 << 31),
        **({"num_class": classes} if classes else {}),
    }


def _booster(xgboost: Any, sent: Params) -> Any:
    booster = xgboost.Booster({"nthread": torch.get_num_threads()})
    booster.load_model(bytearray(sent[TREES].tobytes()))
    return booster


def _table(data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    """Return data as a matrix of inputs, a row an example, and their targets."""
    inputs, targets = zip(*batches_of(data, BATCH), strict=True)
    rows = torch.cat(list(inputs)).cpu()
    return rows.reshape(len(rows), -1).float(), torch.cat(list(targets)).cpu()


def _metrics(
    bench: WorkBench, xgboost: Any, booster: Any, inputs: torch.Tensor, targets: torch.Tensor
) -> dict[str, float]:
    """Return the task's loss and metrics of what the model predicts."""
    outputs = torch.from_numpy(booster.predict(xgboost.DMatrix(inputs.numpy())))
    means = ExampleMeans(bench.task)
    means.add(outputs, targets, bench.task.loss(outputs, targets))
    return means.means()
