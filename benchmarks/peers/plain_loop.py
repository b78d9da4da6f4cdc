"""Federated averaging as a careful person writes it in torch alone: one client after another.

The module, the data and the optimizer's arithmetic are prepared once; a client costs a copy of the
params, its steps, and an addition. One process, so many threads.

    plain_loop.py MODEL [--rounds 6] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--rounds", type=int, default=6)
parser.add_argument("--threads", type=int, default=1)
arguments = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(arguments.threads)

import torch
from models import BATCH_SIZE, MODELS, Work, samples
from torch.nn import functional


def optimizer_of(work: Work, params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return a client's optimizer; each round has a new one."""
    if work.optimizer == "adam":
        return torch.optim.Adam(params, work.learning_rate)
    return torch.optim.SGD(params, work.learning_rate, momentum=work.momentum)


def main() -> None:
    """Train, and print a line of JSON with the rounds' seconds."""
    work = MODELS[arguments.model]
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    module = work.build().train()
    clients = [tuple(map(torch.from_numpy, each)) for each in samples(work)]
    params = [*module.parameters()]
    held = [param.detach() for param in params] + list(module.buffers())
    now = [each.clone() for each in held]
    seconds = []
    for _ in range(arguments.rounds + 1):
        began_s = time.perf_counter()
        sums = [torch.zeros_like(each, dtype=torch.float64) for each in now]
        for inputs, targets in clients:
            for each, start in zip(held, now, strict=True):
                each.copy_(start)
            optimizer = optimizer_of(work, params)
            order = torch.randperm(len(targets))
            for chosen in order.split(BATCH_SIZE):
                optimizer.zero_grad()
                outputs = module(inputs[chosen])
                functional.cross_entropy(outputs, targets[chosen]).backward()
                optimizer.step()
            for total, each in zip(sums, held, strict=True):
                total.add_(each)
        now = [(total / len(clients)).to(each.dtype) for total, each in zip(sums, now, strict=True)]
        seconds.append(time.perf_counter() - began_s)
    print(json.dumps({"round_s": seconds[1:]}))


main()
