"""González, Guerraoui, Pinot, Rizk, Stephan, Taïani (2025), ByzFL, arXiv 2505.24802: attack x defence.

Test accuracy with ten honest clients and two adversaries, by attack and defence. ByzFL publishes
0.98 for MNIST, homogeneous data, and clipping, nearest neighbour mixing and a trimmed mean under
sign flipping, inner product manipulation (IPM) and "a little is enough" (ALIE).
The claims: under its worst attack a robust rule is better than the mean, and clipping and mixing before a
rule make it stronger where data are uneven, here Dirichlet(0.5).
"""

from study import Study, Verdict, last, two_layers

ROUNDS = 30
LAST = 5
HONEST, ADVERSARIES = 10, 2
RATE = 0.1
ATTACKS = {
    "nobody attacks": None,
    "sign flip": {"kind": "sign_flip"},
    "IPM": {"kind": "ipm"},
    "ALIE": {"kind": "alie"},
    "label flip": {"kind": "label_flip"},
}
DEFENCES = {
    "mean": None,
    "trimmed mean": {"aggregation": "trimmed_mean"},
    "clip+nnm+trimmed mean": {
        "aggregation": "trimmed_mean",
        "preaggregation": ["clip", "nnm"],
        "clip_norm": 2.0,
    },
}
BEST = "clip+nnm+trimmed mean"
PUBLISHED, MARGIN = 0.98, 0.02
PARTITIONS = {"IID": {"partition": "iid"}, "uneven": {"partition": "dirichlet", "alpha": 0.5}}


def main() -> None:
    """Measure the table on both divisions, and judge."""
    study = Study(__doc__, model=two_layers)
    worst = {}
    for part, partition in PARTITIONS.items():
        for defence, robust in DEFENCES.items():
            rows = {}
            for attack, adversaries in ATTACKS.items():
                clients = HONEST + (ADVERSARIES if adversaries else 0)
                arguments = {
                    "clients": clients,
                    "rounds": study.rounds(ROUNDS),
                    "executor": "vectorized",
                    "run": {"min_clients": clients},
                    "simulation": dict(partition),
                    "training": {"epochs": 1, "batch_size": 50, "learning_rate": RATE},
                }
                if adversaries:
                    arguments["simulation"]["adversaries"] = {**adversaries, "count": ADVERSARIES}
                if robust:
                    arguments["robust"] = {**robust, "byzantine": ADVERSARIES}
                rows[attack] = study.values(arguments, last(LAST))
            study.table(f"{part}, {defence}: accuracy", rows)
            attacked = [values for attack, values in rows.items() if ATTACKS[attack]]
            worst[part, defence] = [min(each) for each in zip(*attacked, strict=True)]
            if defence == "mean":
                worst[part, "honest"] = rows["nobody attacks"]
    study.table(
        "accuracy under the worst attack",
        {f"{part}, {defence}": values for (part, defence), values in worst.items()},
    )
    study.conclude(
        *(
            Verdict.more(
                f"{part}: {defence} is better than the mean, each under its worst attack",
                worst[part, defence],
                worst[part, "mean"],
            )
            for part in PARTITIONS
            for defence in DEFENCES
            if defence != "mean"
        ),
        Verdict.more(
            f"uneven: {BEST} is better than the trimmed mean alone",
            worst["uneven", BEST],
            worst["uneven", "trimmed mean"],
        ),
        Verdict.more(
            f"IID: {BEST} stays within two points of the published {PUBLISHED}",
            worst["IID", BEST],
            [PUBLISHED - MARGIN for _ in study.seeds],
        ),
        Verdict.more(
            f"IID: {BEST} stays within two points of honest clients' mean",
            worst["IID", BEST],
            [value - MARGIN for value in worst["IID", "honest"]],
        ),
    )


if __name__ == "__main__":
    main()
