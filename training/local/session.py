"""One client's round under an algorithm with a client's half."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from ...errors import ProtocolError
from ...flower.messages import TensorArray, arrays_to_params, params_to_arrays, record_of
from ...machine.accelerators import widest_float
from ...strategies.algorithms.auxiliary_names import auxiliary_name, kind_of
from ..algorithms.algorithms import LocalAlgorithm
from ..algorithms.corrections import Corrections, checked_answer, learned_in, zero_client_state
from ..algorithms.training_bench import TrainingBench
from ..local_round import LocalRound, Tensors
from ..module_params import owners_of, params_of_module, to_array, to_tensor
from ..settings import TrainingSettings

if TYPE_CHECKING:
    from ...task import Data, Task

__all__ = [
    "CLIENT_STATE",
    "LocalSession",
    "client_state_in",
    "shared_in",
    "without_auxiliary",
]

CLIENT_STATE = "algorithm"
"""The record of a client's state that an algorithm's part is in."""


class LocalSession:
    """Corrects a module's training steps, and makes the reply once it is trained.

    Attributes:
        corrections: what the trainer needs of it.
    """

    def __init__(
        self,
        algorithm: LocalAlgorithm,
        module: torch.nn.Module,
        arrays: ArrayRecord,
        state: RecordDict,
    ) -> None:
        """Begin with a module that has its params, the instruction's arrays and the client state.

        Raises:
            ProtocolError: an auxiliary tensor that the algorithm needs is missing, or of another shape.
        """
        self._algorithm = algorithm
        self._module = module
        self._state = state
        self._arrays = arrays
        self._learned = frozenset(learned_in(module))
        self._starts = {name: tensor.clone() for name, tensor in _tensors_of(module).items()}
        learned = {name: self._starts[name] for name in self._learned}
        device = next((each.device for each in learned.values()), torch.device("cpu"))
        self._device = device
        self._owners = owners_of(module)
        self._shared = shared_in(arrays, algorithm, learned, device)
        self._none = zero_client_state(algorithm, learned, device)
        self._client_state = {**self._none, **client_state_in(state, device)}
        self.corrections = Corrections(algorithm, module, self._shared, self._client_state)

    def bench(
        self, task: Task, data: Data, settings: TrainingSettings, *, client: int, device: str
    ) -> TrainingBench:
        """Return what an algorithm that makes its steps itself trains the module with."""
        return TrainingBench(
            task,
            self._module,
            data,
            settings,
            client=client,
            device=device,
            start=self._starts,
            client_state=self._client_state,
            shared=self._shared,
        )

    @torch.no_grad()
    def finish(self, *, loss: float, copy: bool) -> ArrayRecord:
        """Return the arrays of the reply, and store the new client state."""
        trained = _tensors_of(self._module)
        slots = self.corrections.slots[0] if self.corrections.slots else ()
        wide = widest_float(self._device)
        answer = self._algorithm.answer(
            LocalRound(
                starts=self._starts,
                trained=trained,
                learned=self._learned,
                owners=self._owners,
                shared=self._shared,
                client_state=self._client_state,
                steps=torch.tensor(self.corrections.steps, dtype=wide, device=self._device),
                losses=torch.tensor(loss, dtype=wide, device=self._device),
                momentum=dict(zip(learned_in(self._module), slots, strict=bool(slots))),
            )
        )
        answer = checked_answer(answer, self._algorithm, declared=self._none, shared=self._shared)
        for name, tensor in answer.params.items():
            trained[name].copy_(tensor)
        if answer.client_state:
            client_state = {
                name: to_array(tensor, copy=True) for name, tensor in answer.client_state.items()
            }
            self._state[CLIENT_STATE] = params_to_arrays(client_state)
        made = params_to_arrays(params_of_module(self._module, copy=copy))
        for name, array in self._arrays.items():
            if name in answer.auxiliary:
                tensor = answer.auxiliary[name].to(self._shared[name].dtype)
                sent = to_array(tensor, copy=copy).astype(array.dtype, copy=False)
                made[name] = TensorArray(sent)
            elif name not in made:
                made[name] = array
        return made


def _tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach() for name, tensor in named}


def without_auxiliary(arrays: ArrayRecord, algorithm: LocalAlgorithm) -> ArrayRecord:
    """Return the model's own arrays among those of an instruction."""
    kinds = _kinds_of(algorithm)
    if not kinds:
        return arrays
    return record_of({n: array for n, array in arrays.items() if kind_of(n, kinds) is None})


def shared_in(
    arrays: ArrayRecord, algorithm: LocalAlgorithm, learned: Tensors, device: torch.device
) -> dict[str, torch.Tensor]:
    """Return the auxiliary tensors of an instruction.

    Raises:
        ProtocolError: one that the algorithm needs is missing.
    """
    kinds = _kinds_of(algorithm)
    named = record_of({name: a for name, a in arrays.items() if kind_of(name, kinds) is not None})
    found = {name: _placed(a, device) for name, a in arrays_to_params(named).items()}
    needed = {auxiliary_name(kind, name) for kind in algorithm.auxiliary for name in learned}
    needed |= set(algorithm.tensors)
    if missing := needed - found.keys():
        raise ProtocolError(
            f"tensor {min(missing)!r} is missing: algorithm {algorithm.settings.algorithm!r} needs it"
        )
    return found


def client_state_in(state: RecordDict, device: torch.device) -> dict[str, torch.Tensor]:
    """Return the client state; empty before the client's first round."""
    record = state.array_records.get(CLIENT_STATE)
    if record is None:
        return {}
    return {name: _placed(array, device) for name, array in arrays_to_params(record).items()}


def _placed(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return an array on a device, in float32 where it is float64 and the device has none."""
    tensor = to_tensor(array)
    return tensor.to(device, widest_float(device) if tensor.dtype == torch.float64 else None)


def _kinds_of(algorithm: LocalAlgorithm) -> Collection[str]:
    return {*algorithm.auxiliary, *(name.partition("/")[0] for name in algorithm.tensors)}
