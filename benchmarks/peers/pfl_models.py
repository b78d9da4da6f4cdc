"""pfl-research with one of the models of `models.py`: 20 clients of 40 samples, all in every round.

pfl_models.py MODEL [--rounds 6] [--threads 1] [--processes 2]
"""

from __future__ import annotations

import argparse

from pfl_federation import arguments_of, simulate, with_loss

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=6)
    arguments = arguments_of(__file__, parser)

    import torch
    from models import MODELS, samples

    work = MODELS[arguments.model]
    torch.manual_seed(0)
    clients = samples(work)
    simulate(
        with_loss(work.build()),
        clients,
        arguments,
        cohort=len(clients),
        rounds=arguments.rounds + 1,
        learning_rate=work.learning_rate,
        momentum=work.momentum,
        optimizer=work.optimizer,
    )
