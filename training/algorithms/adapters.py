"""A client's half of LoRA: it trains the adapters that the server sends, on its own copy of the base."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...errors import DataError
from ...strategies.algorithms.algorithm import Params
from ...strategies.algorithms.lora import BASE, base_checksum
from ..evaluation import evaluate
from ..loop.trainer import train
from ..module_params import params_of_module, to_array
from .work_bench import LocalWork, WorkBench

if TYPE_CHECKING:
    from ...task import Data

__all__ = ["TrainAdapters"]


class TrainAdapters(LocalWork):
    """Trains what was sent; all other params must be frozen, and equal to the server's."""

    def answer(self, bench: WorkBench, sent: Params) -> tuple[int, dict[str, float], Params]:
        """Return the number of examples, the metrics, and the adapters.

        Raises:
            DataError: the base model differs from the server's, or is not frozen.
        """
        module = self._module(bench, sent)
        others = [n for n, p in module.named_parameters() if p.requires_grad and n not in sent]
        if others:
            raise DataError(
                f"param {others[0]!r} learns and does not travel: freeze it in the task's model, or "
                "name it in strategy.adapters"
            )
        examples, means = train(
            bench.task,
            module,
            bench.data.train,
            bench.settings,
            client=bench.client,
            device=bench.device,
        )
        trained = module.state_dict()
        return examples, means, {name: to_array(trained[name], copy=True) for name in sent}

    def measure(self, bench: WorkBench, sent: Params, data: Data) -> tuple[int, dict[str, float]]:
        """Return the number of examples, and the metrics of the base with these adapters."""
        module = self._module(bench, sent)
        size = bench.settings.batch_size
        return evaluate(bench.task, module, data, batch_size=size, device=bench.device)

    def _module(self, bench: WorkBench, sent: Params) -> torch.nn.Module:
        wanted = bench.configured(BASE, int)

        def check(module: torch.nn.Module) -> None:
            found = base_checksum(params_of_module(module, copy=False), sent.__contains__)
            if found != wanted:
                raise DataError(
                    f"the base model's checksum is {found:08x} here and {wanted:08x} at the server: "
                    "give every site the same weights, and the task's model no random ones"
                )

        return bench.module.with_adapters(sent, seed=bench.settings.seed, check=check)
