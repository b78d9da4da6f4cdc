"""A machine that leads, as a process of its own: a round for each line of JSON on its stdin.

`python leading.py FOLDER`: the app is in FOLDER/app, the passes of FOLDER/hosts are valid.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "training" / "parallel"))
from conftest import Bench, distance

from meadow.client.hosts.link import Link
from meadow.config.sections.device import DeviceConfig
from meadow.errors import MeadowError
from meadow.training.local.training import LocalTraining


def main() -> None:
    """Train a round for each line, and compare it with that of one process."""
    folder, device = Path(sys.argv[1]), json.loads(sys.argv[2])
    bench = Bench(folder, app=folder / "app")
    config = DeviceConfig(device="cpu", **device)
    leader = Link(folder, config)
    training = LocalTraining.owned(
        bench.task,
        config,
        app_dir=str(bench.app.folder),
        sha256=bench.app.sha256,
        client_dir=folder,
        hosts=leader,
    )
    say(ready=training.text, port=leader.port)
    for line in sys.stdin:
        try:
            say(**compared(bench, training, json.loads(line)))
        except MeadowError as error:
            say(error=str(error))
    training.close()
    leader.close()


def compared(bench: Bench, training: LocalTraining, asked: dict[str, Any]) -> dict[str, Any]:
    """Return how far a round's update is from that of one process with the same batches."""
    if asked.pop("evaluate", False):
        alone = bench.training()
        seen, means = alone.evaluate(bench.round(alone, **asked), "train")
        examples, ours = training.evaluate(bench.round(training, **asked), "train")
        far = max(abs(ours[name] - means[name]) for name in means)
        return {"distance": far, "same": seen == examples, "by": group_of(training)}
    params, samples, means = bench.train(bench.training(), **asked)
    ours, seen, told = bench.train(training, **asked)
    close = all(abs(told[name] - means[name]) <= 1e-5 * abs(means[name]) for name in means)
    same = seen == samples == 53 and close
    return {"distance": distance(ours, params), "same": same, "by": group_of(training)}


def group_of(training: LocalTraining) -> str:
    """Return the devices of the group as it is now."""
    assert training._group is not None
    return training._group.plan.text


def say(**answer: Any) -> None:
    """Answer in a line."""
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
