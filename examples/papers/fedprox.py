"""Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith (2020), arXiv 1812.06127: figure 1, section 5.2.

Test accuracy where clients are too slow. Ten clients are asked in a round for 20 epochs; of these
none or 90 % are stragglers, which manage 1 to 20 epochs. FedAvg drops them; FedProx takes what they
have, with mu = 0 or with a proximal term. Logistic regression; images sorted by label, two shards a client.
The paper: with 90 % stragglers FedProx is better than FedAvg, by 22 points on average over its data
sets; taking partial work alone (mu = 0) helps, and the proximal term adds to it.
"""

from dataclasses import replace

import torch
from study import Study, Verdict, last, softmax

import meadow

ROUNDS = 30
LAST = 5
CLIENTS, COHORT, EPOCHS = 100, 10, 20
RATES = (0.03, 0.1, 0.3)
MUS = (0.01, 0.1, 1.0)
"""The paper's choices; it picks one for each data set."""
SHARES = (0.0, 0.9)


class Client(meadow.LocalAlgorithm):
    """A client that may be a straggler, anew in each round."""

    def __init__(self, stragglers: float, mu: float) -> None:
        self.stragglers, self.mu = stragglers, mu

    def train(self, bench: meadow.TrainingBench) -> None:
        epochs = int(torch.randint(1, bench.settings.epochs + 1, ()))
        if torch.rand(()) < self.stragglers:
            bench.settings = replace(bench.settings, epochs=epochs)
        params = [(param, bench.start[name]) for name, param in bench.module.named_parameters()]
        for inputs, targets in bench.batches():
            bench.losses(inputs, targets).mean().backward()
            for param, start in params:
                param.grad.add_(param.detach() - start, alpha=self.mu)
            bench.step()


@meadow.builder
def partial_work(*, stragglers: float = 0.0, mu: float = 0.0) -> meadow.Algorithm:
    """FedProx, in which stragglers send what they have."""
    return meadow.averaging("partial_work", client=Client(stragglers, mu))


def arguments_of(study: Study, stragglers: float, mu: float | None, rate: float) -> dict:
    """Return a run's arguments; `mu` is None for FedAvg, whose rounds have no stragglers."""
    drops = mu is None
    strategy = {"name": "fedprox:partial_work", "stragglers": stragglers, "mu": mu}
    return {
        "strategy": "fedavg" if drops else strategy,
        "clients": CLIENTS,
        "cohort": round(COHORT * (1 - stragglers)) if drops else COHORT,
        "rounds": study.rounds(ROUNDS),
        "executor": "vectorized" if drops else "sequential",
        "run": {"min_clients": 1},
        "simulation": {"partition": "shards"},
        "training": {
            "epochs": 1 if study.quick else EPOCHS,
            "batch_size": 10,
            "learning_rate": rate,
        },
    }


def main() -> None:
    """Measure the three methods for every share of stragglers, and judge."""
    study = Study(__doc__, model=softmax)
    found, rows = {}, {}
    rate = study.tuned([arguments_of(study, 0.0, None, rate) for rate in RATES], last(LAST))[
        "training"
    ]["learning_rate"]
    for share in SHARES:
        mus = [arguments_of(study, share, mu, rate) for mu in MUS]
        choices = {
            "FedAvg": arguments_of(study, share, None, rate),
            "mu=0": arguments_of(study, share, 0.0, rate),
            "mu>0": study.tuned(mus, last(LAST)),
        }
        for name, arguments in choices.items():
            found[name, share] = study.values(arguments, last(LAST))
            mu = f", mu {arguments['strategy']['mu']:g}" if name == "mu>0" else ""
            rows[f"{share:.0%} stragglers, {name}{mu}"] = found[name, share]
    study.table(f"accuracy, mean of the last {LAST} rounds; rate {rate:g}", rows)
    most = SHARES[-1]
    study.conclude(
        Verdict.more(
            f"{most:.0%} stragglers: FedProx with mu=0 is better than FedAvg",
            found["mu=0", most],
            found["FedAvg", most],
        ),
        Verdict.more(
            f"{most:.0%} stragglers: FedProx with mu>0 is better than with mu=0",
            found["mu>0", most],
            found["mu=0", most],
        ),
        Verdict.more(
            f"{most:.0%} stragglers: FedProx with mu>0 is better than FedAvg by 22 points",
            found["mu>0", most],
            [value + 0.22 for value in found["FedAvg", most]],
        ),
        Verdict.more(
            "no stragglers: the proximal term helps", found["mu>0", 0.0], found["mu=0", 0.0]
        ),
    )


if __name__ == "__main__":
    main()
