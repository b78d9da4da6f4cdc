"""What a second process of one thread brings to a client's training, and what it costs a round.

The CNN of examples/mnist on its 4,000 images, batches of 256 in all, plain SGD, in float32, on the
CPU. `ddp_speedup_2` is the samples a second of two ranks of one thread over those of one process
of one thread; both are trained in turns, and the median of each counts. `warm_overhead_ms` is what
a round of a single step of a few images takes longer on the two ranks: orders, params, totals.

    python benchmarks/parallel.py [--repeats 5] [--epochs 10]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import torch
from harness.report import report

from meadow.apps.folder import App
from meadow.config.sections.device import DeviceConfig
from meadow.flower.messages import params_to_arrays
from meadow.machine.process_limits import keep_freed_memory
from meadow.task import Site
from meadow.training.local.training import LocalTraining, Round
from meadow.training.module_params import build_module, params_of_module
from meadow.training.settings import TrainingSettings
from meadow.training.warm_module import WarmModule

APP = Path(__file__).parents[1] / "examples" / "mnist"
BATCH = 256
Pair = tuple[torch.Tensor, torch.Tensor]
SMALL_ROUNDS = 20


class Client:
    """One way of training the app."""

    def __init__(self, app: App, folder: Path, config: DeviceConfig) -> None:
        self._task = app.load_task()
        self._training = LocalTraining.owned(
            self._task, config, app_dir=str(app.folder), sha256=app.sha256, client_dir=folder
        )
        self._module = WarmModule(self._task, "cpu")
        self._arrays = params_to_arrays(params_of_module(build_module(self._task, 0)))
        self._rounds = 0

    def round_s(self, data: Pair, site: Site, **settings: int) -> float:
        """Train one round and return how long it took."""
        self._rounds += 1
        begun_at_s = time.perf_counter()
        self._training.train(
            Round(
                site=site,
                data=data,
                settings=TrainingSettings(**settings),  # type: ignore[arg-type]
                client=1,
                load=lambda generation: self._module.with_params(
                    self._arrays, seed=0, generation=generation
                ),
                key=(self._rounds,),
            )
        )
        return time.perf_counter() - begun_at_s

    def close(self) -> None:
        """End its ranks."""
        self._training.close()


@contextmanager
def clients(app: App, folder: Path) -> Iterator[tuple[Client, Client]]:
    """One process, and two ranks."""
    alone = Client(app, folder / "1", DeviceConfig(device="cpu"))
    two = DeviceConfig(device="cpu", parallel="ddp", processes=2)
    pair = Client(app, folder / "2", two)
    try:
        yield alone, pair
    finally:
        pair.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as every training process does
    app, site = App.load(APP, environ={}), Site(index=0, count=1)
    with tempfile.TemporaryDirectory() as folder, clients(app, Path(folder)) as (alone, pair):
        data = app.load_task().client_data(site).train
        samples = len(data[1]) * options.epochs
        work = {"batch_size": BATCH, "epochs": options.epochs}
        times: dict[Client, list[float]] = {alone: [], pair: []}
        for client in (alone, pair):
            client.round_s(data, site, **work)  # warm
        for _ in range(options.repeats):
            for client, taken in times.items():
                taken.append(client.round_s(data, site, **work))
        ours, theirs = median(times[pair]), median(times[alone])
        few = Site(index=0, count=1000)
        little = app.load_task().client_data(few).train
        single: dict[Client, list[float]] = {alone: [], pair: []}
        for client, taken in single.items():
            client.round_s(little, few, batch_size=BATCH)  # loads them
            for _ in range(SMALL_ROUNDS):
                taken.append(client.round_s(little, few, batch_size=BATCH))
        overhead_s = median(single[pair]) - median(single[alone])
    figures = {
        "ddp_speedup_2": round(theirs / ours, 3),
        "warm_overhead_ms": round(overhead_s * 1000, 2),
    }
    rows = [
        {"who": "1 process of 1 thread", "samples/s": samples / theirs},
        {"who": "2 ranks of 1 thread", "samples/s": samples / ours},
    ]
    report("parallel", rows, figures)


if __name__ == "__main__":
    main()
