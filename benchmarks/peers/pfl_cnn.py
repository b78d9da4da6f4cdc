"""pfl-research with the CNN of its own CIFAR-10 benchmark on random images: 50 clients of 50.

All clients are in every round. There is nothing to learn, hence no accuracy.
Source of the network: pfl-research, benchmarks/model/pytorch/cnn.py, `simple_cnn`: two 3 x 3
convolutions (32 and 64 channels), dropout 0.25 and 0.5, a dense layer of 128, Glorot weights.
Best with two processes: 2.13 (with channels_last: 2.38, fused SGD: 2.32). One process: 4.36, with
two threads 4.11, with these and channels_last 2.67.

    pfl_cnn.py [--rounds 5] [--threads 1] [--processes 2] [--channels-last]
"""

from __future__ import annotations

import argparse

from pfl_federation import arguments_of, simulate, with_loss
from workloads import image_clients


def network():
    """Build the CNN: 1.6 M params for images of shape (3, 32, 32) and ten classes."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Dropout(0.25), nn.Flatten(), nn.Linear(12_544, 128), nn.ReLU()),
        *(nn.Dropout(0.5), nn.Linear(128, 10)),
    )
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return layers


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--channels-last", action="store_true")
    arguments = arguments_of(__file__, parser)
    model = network()
    if arguments.channels_last:
        import torch

        model = model.to(memory_format=torch.channels_last)
    clients = image_clients()
    simulate(with_loss(model), clients, arguments, cohort=len(clients), rounds=arguments.rounds)
