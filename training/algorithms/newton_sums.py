"""A client's half of Newton's method: the mean gradient and Hessian of its loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.func import hessian, jacrev

from ...errors import DataError
from ...flower.messages import params_to_arrays
from ...strategies.algorithms.algorithm import Params
from ...strategies.algorithms.newton import GRADIENT, HESSIAN
from ..batches import batches_of, samples_in
from ..evaluation import evaluate
from ..functional import call_with
from ..module_params import to_array
from .work_bench import LocalWork, WorkBench

if TYPE_CHECKING:
    from ...task import Data

__all__ = ["NewtonSums"]

BATCH = 256


class NewtonSums(LocalWork):
    """Answers with the mean gradient and Hessian over the site's examples, in float64."""

    def answer(self, bench: WorkBench, sent: Params) -> tuple[int, dict[str, float], Params]:
        """Return the number of examples, the metrics, and the sums.

        Raises:
            DataError: the model has params that do not learn, or the sums are not finite.
        """
        params = {name: values for name, values in sent.items() if name not in (GRADIENT, HESSIAN)}
        data, module = bench.data.train, self._module(bench, params)
        _, means = evaluate(bench.task, module, data, batch_size=BATCH, device=bench.device)
        learned = {name: tensor.detach().double() for name, tensor in module.named_parameters()}
        if list(learned) != list(params) or not all(p.requires_grad for p in module.parameters()):
            raise DataError("Newton steps need a model of params that all learn, and of no buffers")
        flat = torch.cat([tensor.reshape(-1) for tensor in learned.values()])
        gradient, curvature = torch.zeros_like(flat), torch.zeros(len(flat), len(flat)).to(flat)
        module.eval()
        for inputs, targets in batches_of(data, BATCH):
            batch = _wide(inputs.to(bench.device)), _wide(targets.to(bench.device))

            def loss(
                row: torch.Tensor, batch: tuple[torch.Tensor, torch.Tensor] = batch
            ) -> torch.Tensor:
                outputs = call_with(module, _shaped(row, learned), batch[0])
                return bench.task.loss(outputs, batch[1]).sum()

            gradient += jacrev(loss)(flat)
            curvature += hessian(loss)(flat)
        count = samples_in(data)
        made = {GRADIENT: gradient / count, HESSIAN: curvature / count}
        if not all(torch.isfinite(tensor).all() for tensor in made.values()):
            raise DataError("the loss has no finite Hessian here; look for invalid values")
        sums = {name: to_array(tensor, copy=True) for name, tensor in made.items()}
        return count, means, {**params, **sums}

    def measure(self, bench: WorkBench, sent: Params, data: Data) -> tuple[int, dict[str, float]]:
        """Return the number of examples, and the metrics."""
        module = self._module(bench, sent)
        return evaluate(bench.task, module, data, batch_size=BATCH, device=bench.device)

    def _module(self, bench: WorkBench, params: Params) -> torch.nn.Module:
        return bench.module.with_params(params_to_arrays(params), seed=bench.settings.seed)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _shaped(row: torch.Tensor, like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors that lie in one row."""
    sizes = [math.prod(tensor.shape) for tensor in like.values()]
    pieces = zip(like.items(), torch.split(row, sizes), strict=True)
    return {name: piece.reshape(tensor.shape) for (name, tensor), piece in pieces}
