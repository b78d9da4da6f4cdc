"""Tasks over the same rows: a logistic regression, a norm before it, statistics, boosted trees."""

import torch
from torch import nn

import meadow


def rows_of(index):
    generator = torch.Generator().manual_seed(index)
    inputs = torch.randn(60 + 20 * index, 4, generator=generator, dtype=torch.float64)
    inputs[:, 0] = inputs[:, 0] * 10 + 40 + 5 * index
    inputs[:, 1:] += index / 5
    noise = torch.randn(len(inputs), generator=generator)
    targets = ((inputs[:, 0] - 45) / 10 + inputs[:, 1] - inputs[:, 2] + noise > 0).double()
    return inputs, targets


def scaled(rows):
    inputs, targets = rows
    return torch.cat([(inputs[:, :1] - 45) / 10, inputs[:, 1:]], 1), targets


def load(site):
    train, test = scaled(rows_of(site.index)), scaled(rows_of(site.index + 100))
    return meadow.ClientData(train=train, test=test)


def columns(data):
    age = data.train[0][:, 0] * 10 + 45
    lab = data.train[0][:, 1].clone()
    lab[::3] = float("nan")
    return {"age": age, "lab": lab}


def loss(out, want):
    return nn.functional.binary_cross_entropy_with_logits(out.squeeze(-1), want, reduction="none")


def tree_loss(out, want):
    return nn.functional.binary_cross_entropy(out.double(), want, reduction="none")


logistic = meadow.Task(
    model=lambda: nn.Linear(4, 1, dtype=torch.float64), loss=loss, client_data=load
)
normed = meadow.Task(
    model=lambda: nn.Sequential(
        nn.BatchNorm1d(4, dtype=torch.float64), nn.Linear(4, 1, dtype=torch.float64)
    ),
    loss=loss,
    client_data=load,
)
counted = meadow.Task(client_data=load, columns=columns)
right = lambda out, want: ((out > 0.5) == (want > 0.5)).float()
trees = meadow.Task(client_data=load, loss=tree_loss, metrics={"accuracy": right})
