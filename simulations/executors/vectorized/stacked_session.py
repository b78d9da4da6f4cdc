"""A chunk of clients under an algorithm with a client's half: `training/local/session.py`
with a leading client axis."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from flwr.app import ArrayRecord, RecordDict

from ....flower.messages import params_to_arrays
from ....machine.accelerators import wide
from ....strategies.algorithms.auxiliary_names import auxiliary_name
from ....training.algorithms.algorithms import LocalAlgorithm
from ....training.algorithms.corrections import checked_answer, names_of, zero_client_state
from ....training.local.session import CLIENT_STATE, client_state_in, shared_in
from ....training.local_round import Answer, LocalRound
from ....training.loop.optimizers import Slots
from ....training.module_params import to_array
from ...population.clients import SimulatedClients
from .stacked_module import StackedModule, Tensors

__all__ = ["StackedSession"]


class StackedSession:
    """Corrects the steps of many clients, and makes their answers.

    What clients keep is a matrix over them, gathered from their states when training begins;
    `keep` scatters it once it is known whose training counts.

    Attributes:
        starts: the auxiliary tensors that came with the params, by their names on the wire.
        slots: what the optimizer begins with, a row a client; None: with new ones.
        has_loss: whether the algorithm has a loss of its own.
    """

    def __init__(
        self,
        algorithm: LocalAlgorithm,
        stacked: StackedModule,
        arrays: ArrayRecord,
        clients: Sequence[int],
        population: SimulatedClients,
    ) -> None:
        """Begin with the clients' node ids, in the order of the rows.

        Raises:
            ProtocolError: an auxiliary tensor that the algorithm needs is missing.
        """
        self._algorithm, self._stacked = algorithm, stacked
        self._clients, self._population = clients, population
        device = stacked.probe.device
        self.starts = shared_in(arrays, algorithm, stacked.trained, device)
        self._states = [population.context_of(client).state for client in clients]
        self._none = none = zero_client_state(algorithm, stacked.trained, device)
        owned = [{**none, **client_state_in(state, device)} for state in self._states]
        self._client_state = {name: torch.stack([each[name] for each in owned]) for name in none}
        self._next: Answer | None = None
        self.has_loss = algorithm.has_loss
        self.slots: Slots | None = None
        if algorithm.slot is not None:
            begun = [self.starts[auxiliary_name(algorithm.slot, name)] for name in stacked.trained]
            self.slots = [[each.expand(len(clients), *each.shape).clone() for each in begun]]

    def own(self, low: int, high: int) -> Tensors:
        """Return what the clients `low` to `high` keep."""
        return {name: each[low:high] for name, each in self._client_state.items()}

    def corrected(self, params: Tensors, gradients: Tensors, low: int, high: int) -> Tensors:
        """Return the gradients to follow, of the clients `low` to `high`."""
        made = {}
        for name, gradient in gradients.items():
            own, shared = names_of(self._algorithm, name)
            client_state = self._client_state.get(own)
            made[name] = self._algorithm.corrected(
                gradient,
                params[name],
                self._stacked.trained[name],
                None if client_state is None else client_state[low:high],
                self.starts.get(shared),
            ).to(gradient.dtype)
        return made

    def answer(self, rows: Tensors, *, steps: torch.Tensor, losses: torch.Tensor) -> Tensors:
        """Return the rows of params, buffers and auxiliary tensors that the clients answer with.

        Shapes: `steps` and `losses`, before the round, are (clients,).
        """
        slots = self.slots[0] if self.slots else ()
        made = self._algorithm.answer(
            LocalRound(
                starts={**self._stacked.trained, **self._stacked.buffers},
                trained=rows,
                learned=frozenset(self._stacked.trained),
                owners=self._stacked.owners,
                shared=self.starts,
                client_state=self._client_state,
                steps=wide(steps),
                losses=losses,
                momentum=dict(zip(self._stacked.trained, slots, strict=bool(slots))),
            )
        )
        self._next = checked_answer(
            made, self._algorithm, declared=self._none, shared=self.starts, axes=1
        )
        sent = {
            name: tensor.to(self.starts[name].dtype)
            for name, tensor in self._next.auxiliary.items()
        }
        return {**self._next.params, **sent}

    def keep(self, good: Sequence[int]) -> None:
        """Let these rows' clients keep what their round made."""
        if self._next is None or not self._next.client_state:
            return
        for row in good:
            state: RecordDict = self._states[row]
            own = {n: to_array(each[row], copy=True) for n, each in self._next.client_state.items()}
            state[CLIENT_STATE] = params_to_arrays(own)
            self._population.keep_state(self._clients[row], state)
