"""McMahan, Moore, Ramage, Hampson, Agüera y Arcas (2017), arXiv 1602.05629: tables 2 and 4.

Rounds to a target accuracy as a client computes more: E local epochs, batches of B. The first row,
E = 1 and B = all of a client's images, is FedSGD. The paper's 100 clients, of which ten train in a
round, IID or with two shards of images sorted by label each; and the rate tuned for each row.
The paper, 2NN to 97 % (table 4) and CNN to 99 % (table 2): more local computation needs fewer rounds,
with IID data and without, and saves less without (CNN, E = 5, B = 10: 31 times fewer rounds, and 2.1).
"""

from study import Study, Verdict, rounds_to, two_layers

TARGET = {"mnist": 0.85, "fashion": 0.75, "digits": 0.85}
ROUNDS = 100
ALL = 1_000_000
ROWS = {
    "FedSGD, E=1 B=all": (1, ALL),
    "E=5 B=all": (5, ALL),
    "E=1 B=10": (1, 10),
    "E=5 B=10": (5, 10),
}
RATES = (0.1, 0.3, 1.0)


def main() -> None:
    """Measure both halves of the table, and judge."""
    study = Study(__doc__, model=two_layers)
    rounds = study.rounds(ROUNDS)
    measure = rounds_to(TARGET[study.data], rounds)
    measured = {}
    for partition in ("iid", "shards"):
        rows = {}
        for name, (epochs, batch) in ROWS.items():
            choices = [
                {
                    "clients": 100,
                    "cohort": 10,
                    "rounds": rounds,
                    "executor": "vectorized",
                    "simulation": {"partition": partition},
                    "training": {"epochs": epochs, "batch_size": batch, "learning_rate": rate},
                }
                for rate in RATES
            ]
            best = study.tuned(choices, measure, least=True)
            rate = best["training"]["learning_rate"]
            rows[f"{name}, rate {rate:g}"] = study.values(best, measure)
            measured[partition, name] = rows[f"{name}, rate {rate:g}"]
        study.table(f"{partition}: rounds to {TARGET[study.data]}", rows, digits=1)
    print(f"{rounds + 1} rounds means that {rounds} were not enough.\n")
    sgd, most = next(iter(ROWS)), "E=5 B=10"
    saved = {}
    for part in ("iid", "shards"):
        pairs = zip(measured[part, sgd], measured[part, most], strict=True)
        saved[part] = [before / after for before, after in pairs]
    study.table(f"FedSGD's rounds over those of {most}", saved, digits=1)
    study.conclude(
        *(
            Verdict.less(
                f"{part}: {most} needs fewer rounds than FedSGD",
                measured[part, most],
                measured[part, sgd],
            )
            for part in ("iid", "shards")
        ),
        Verdict.more("IID data save more than shards", saved["iid"], saved["shards"]),
    )


if __name__ == "__main__":
    main()
