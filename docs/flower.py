"""Write docs/flower.md from the apps that the tests run: `make docs`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

FEATURES_FILE = Path(__file__).parents[1] / "tests" / "federation" / "flower_features.py"

INTRODUCTION = """\
# Flower's apps

A folder with `[tool.flwr.app]` in its `pyproject.toml` is an app: `meadow simulate FOLDER` and
`meadow run submit FOLDER` take it as it is, written for flwr 1.41.

    meadow simulate my_flower_app --clients 10 --set learning-rate=0.05
    meadow simulate my_flower_app --node-config 'dataset-path="/data/all"'

What it finds and what it leaves:

- **Clients.** `--clients` says how many are simulated, else `options.num-supernodes` of the app's
  default federation, else 10. `context.node_config` has `partition-id` and `num-partitions`, beside
  Meadow's `site-index` and `site-count`. `--node-config` adds keys for all simulated clients; a real
  site's are the free keys under `[data]` in its `client.toml`.
- **Rounds.** A message's round is its "server-round", or a group id that is a number; an app that
  numbers nothing has a new round when a client is asked for the same thing again. All exchanges of
  a workflow, as SecAgg+ has four, are one round. `metrics.jsonl` has a line each; where clients are
  asked questions, `query` in it has the means of their numbers.
- **Answers.** `answers.jsonl` has what clients answered to questions, and text that they reported
  with an update. Arrays of text that a strategy returns are in `result.json`.
- **Output.** What the ServerApp prints and logs is shown, and kept in `app.log`; it works in
  `files/` of the run folder, so a relative path that it writes is there, and `meadow run pull`
  fetches it. In a simulation, what clients print and log is in `app.log` too, whichever executor
  runs them.
- **Pushed messages** are executed whether or not somebody pulls their replies, and before the same
  client is asked anything else.
- **Failures.** A run whose clients never answered has failed, and says what they said; so has one
  with no secure sum, and says how many clients that wants. A simulation whose strategy waits for
  more clients than there are says so at once. Where an app's own loop does nothing but look for
  clients, or for replies of which none is under way, that is told, and the run has failed after a
  minute in a simulation, and after 24 hours on a server, where sites may still come.
- **The same twice.** Flower's strategies draw cohorts by Python's `random`, which is seeded for
  every run, unless the app seeds it itself.

An app that needs a package which is not there is told its name and how to install it.
"""

TABLE = """\
## What is tested

Each line is an app of the tests' own, in `tests/federation/flower_apps`. Simulated: the numbers that
it writes are those of Flower's own engine. Deployed: a server and three clients over gRPC write what
the simulation writes, round by round.

| feature | app | `simulate` | deployed |
|---|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    found = runpy.run_path(str(FEATURES_FILE))
    deployed = set(found["DEPLOYED"])
    lines = [
        f"| {feature} | `{case.name}` | equal | {'equal' if case in deployed else 'not tested'} |"
        for feature, case in found["FEATURES"].items()
    ]
    return f"{INTRODUCTION}\n{TABLE}" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
