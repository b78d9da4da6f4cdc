"""One of the models of benchmarks/peers/models.py; MODEL in the environment names it."""

from __future__ import annotations

import os

import torch
from models import MODELS, samples

import meadow

WORK = MODELS[os.environ.get("MODEL", "logistic regression")]
CLIENTS = [tuple(map(torch.from_numpy, each)) for each in samples(WORK)]


def load_client(site: meadow.Site) -> meadow.ClientData:
    return meadow.ClientData(train=CLIENTS[site.index])


task = meadow.Task(model=WORK.build, loss=meadow.cross_entropy, client_data=load_client)
