"""FedPer: some layers are the clients' own, and never leave them.

Source: Arivazhagan, Aggarwal, Singh, Choudhary, "Federated learning with personalization layers"
(2019), algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from ...errors import ConfigError
from .algorithm import Aggregate, Algorithm, Params, State
from .builders import builder
from .fedavg import fedavg

__all__ = ["fedper", "sharing"]


@builder(
    example={"private": ["out.*"]},
    client="trains all layers, and answers with the shared ones",
    keeps="the private layers",
    personal=True,
)
def fedper(*, private: Sequence[str] = ()) -> Algorithm:
    """Average the shared layers; the clients train all, and keep the private ones.

    `private` are patterns of tensors' names, as "head.*"; `*` stands for any characters.

    Guarantees: a private tensor is in no instruction and in no reply. The server's stay as they
        began, so that its params are a whole model.
    Raises:
        ConfigError: there are no patterns; at the start, one matches nothing, or all is private.
    """
    if not private:
        raise ConfigError('private must name the clients\' own layers, as ["head.*"], got none')

    def chosen(params: Params) -> frozenset[str]:
        for pattern in private:
            if not any(fnmatchcase(name, pattern) for name in params):
                raise ConfigError(
                    f"private pattern {pattern!r} matches no tensor; the model has {', '.join(params)}"
                )
        return frozenset(
            name for name in params if any(fnmatchcase(name, pattern) for pattern in private)
        )

    return sharing(chosen, name="fedper", config={"algorithm": "fedper"})


def sharing(
    private: Callable[[Params], Collection[str]], *, name: str, config: Mapping[str, str | int]
) -> Algorithm:
    """Return federated averaging of all tensors but those that `private` says are the clients'."""
    averaging = fedavg()

    def shared(state: State) -> Params:
        own = private(state.params)
        return {name: values for name, values in state.params.items() if name not in own}

    def init(params: Params) -> State:
        state = averaging.init(params)
        if not shared(state):
            raise ConfigError(f"{name}: every tensor is private, nothing is left to learn together")
        return state

    def apply(state: State, aggregate: Aggregate) -> State:
        params = {**state.params, **aggregate.mean}
        return State(params=params, round=state.round + 1)

    return replace(
        averaging,
        name=name,
        init=init,
        apply=apply,
        client="meadow.training.algorithms.personalization:Personalization",
        client_config=config,
        evaluate_config=config,
        sent=shared,
        evaluated=shared,
    )
