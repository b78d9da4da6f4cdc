"""Hospitals count: ages and blood pressures, without a row leaving anybody."""

import torch

import meadow


def load_client(site: meadow.Site) -> meadow.ClientData:
    """Make up a hospital's patients; a real one reads its own files."""
    generator = torch.Generator().manual_seed(site.index)
    age = 30 + 8 * site.index + 15 * torch.randn(300, generator=generator)
    pressure = 100 + 0.5 * age + 12 * torch.randn(300, generator=generator)
    pressure[::7] = float("nan")  # not everybody's was taken
    return meadow.ClientData(train=(torch.stack([age, pressure], dim=1), torch.zeros(300)))


def columns(data: meadow.ClientData) -> dict[str, torch.Tensor]:
    inputs, _ = data.train
    return {"age": inputs[:, 0], "pressure": inputs[:, 1]}


task = meadow.Task(client_data=load_client, columns=columns)
