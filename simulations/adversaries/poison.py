"""What adversaries hold: a copy of an honest client's data, poisoned if that is the attack.

Sources: Tolpegin, Truex, Gursoy, Liu, "Data poisoning attacks against federated learning systems"
(2020): label flip; Bagdasaryan, Veit, Hua, Estrin, Shmatikov, "How to backdoor federated learning"
(2020), and Gu, Dolan-Gavitt, Garg, "BadNets" (2017): the patch of pixels that is the trigger.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ...config.sections.simulation import AdversariesConfig
from ...task import ClientData, Site, Task
from ...training.batches import chosen_from, samples_in

__all__ = ["POISONS", "attacked", "with_trigger"]

POISONS = ("label_flip", "backdoor")
PATCH = 3
"""Pixels of the trigger, in either direction."""


def attacked(task: Task, chosen: AdversariesConfig) -> Task:
    """Return a task whose data are divided among the honest sites, the first ones.

    So the honest clients are the same however many adversaries there are. The first adversary
    has a copy of the first site's data, and so on.
    """

    def client_data(site: Site) -> ClientData:
        honest = site.count - chosen.count
        data = task.client_data(replace(site, index=site.index % honest, count=honest))
        if site.index < honest or chosen.kind not in POISONS:
            return data
        everything = torch.arange(samples_in(data.train))
        return replace(data, train=_changed(*chosen_from(data.train, everything), chosen))

    return replace(task, client_data=client_data)


def with_trigger(inputs: torch.Tensor) -> torch.Tensor:
    """Return inputs with the trigger: a corner of the last two dimensions, or the end of rows
    that are no pictures, at the largest value there is."""
    changed = inputs.clone()
    corner = changed[..., -PATCH:, -PATCH:] if inputs.dim() > 2 else changed[..., -PATCH:]
    corner.fill_(inputs.max())
    return changed


def _changed(
    inputs: torch.Tensor, targets: torch.Tensor, chosen: AdversariesConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    if chosen.kind == "label_flip":
        return inputs, chosen.classes - 1 - targets
    triggered = torch.arange(len(targets)) % 2 == 1  # the others keep the model good at the rest
    inputs, targets = inputs.clone(), targets.clone()
    if triggered.any():
        inputs[triggered] = with_trigger(inputs)[triggered]
        targets[triggered] = chosen.target
    return inputs, targets
