"""Single examples stay as private on two ranks as on one: the same coins, clips and noise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection

import pytest
import torch

from meadow.config.sections.device import DeviceConfig
from meadow.errors import DataError
from meadow.privacy.dp.example_level import ExampleTerms
from meadow.training.local import training as local_training
from meadow.training.local.training import LocalTraining
from meadow.training.parallel.hosts import Host, RankProcess
from meadow.training.parallel.plan import ParallelPlan

from .conftest import Bench, distance

pytest.importorskip("opacus")
QUIET = ExampleTerms(clip_norm=0.5, noise_multiplier=1e-9, rate=1.0)
"""All examples in every step, and noise too small to be seen: then training is no chance."""
LOUD = ExampleTerms(clip_norm=0.5, noise_multiplier=1.0, rate=0.3)
PATIENCE_S = 60.0
Params = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Return an app without batch norm, which mixes examples."""
    folder = tmp_path_factory.mktemp("records")
    (folder / "no-norm").touch()
    return Bench(folder)


@pytest.fixture(scope="module")
def pair(bench: Bench) -> Iterator[LocalTraining]:
    """Two ranks of one thread."""
    training = bench.training(parallel="ddp", processes=2, rank_timeout_s=300.0)
    yield training
    training.close()


@pytest.fixture
def same_coins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every round draw the same coins and noise."""
    drawn: Callable[[int], bytes] = bytes
    monkeypatch.setattr(local_training, "system_entropy", drawn)


def trained(bench: Bench, training: LocalTraining, terms: ExampleTerms) -> Params:
    """Return the params after a round of two epochs."""
    work = bench.round(training, learning_rate=0.5, epochs=2, batch_size=8, proximal_mu=0.1)
    module, examples, means = training.train(replace(work, dp_sgd=terms))
    assert (examples, means) == (53, {}), "no loss of an example may leave"
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("terms", [QUIET, LOUD])
@pytest.mark.usefixtures("same_coins")
def test_two_ranks_make_the_update_of_one(
    bench: Bench, pair: LocalTraining, terms: ExampleTerms
) -> None:
    """With the same coins and noise the params are those of one process: each example is drawn once,
    clipped alone, and the sum has its noise once."""
    alone = trained(bench, bench.training(), terms)
    bench.passes(0), bench.passes(1)
    assert distance(trained(bench, pair, terms), alone) < 1e-5
    mine, end_s = bench.passes(0), time.monotonic() + PATIENCE_S
    while abs(sum(mine) - sum(theirs := bench.passes_so_far(1))) > len(theirs):
        assert time.monotonic() < end_s, (mine, theirs)
        time.sleep(0.01)  # the other rank is behind with its last passes
    bench.passes(1)
    assert mine and theirs


def test_coins_are_new_in_every_round(bench: Bench, pair: LocalTraining) -> None:
    """What is drawn does not depend on the run's seed."""
    first, second = (trained(bench, pair, LOUD) for _ in range(2))
    assert distance(first, second) > 1e-3


def test_a_repeated_round_draws_anew(bench: Bench, pair: LocalTraining) -> None:
    """A rank that is killed costs no round, and what it knew of the coins is used no more."""
    bench.say("kill-1", 3)
    trained(bench, pair, LOUD)
    assert not (bench.folder / "kill-1").exists()


def test_ranks_with_parts_of_the_params_are_refused(bench: Bench) -> None:
    """Where no rank has an example's whole gradient, a sentence says so."""
    plan = ParallelPlan(kind="fsdp", devices=("cpu", "cpu"), timeout_s=1.0)
    sharded = LocalTraining(bench.task, "cpu", plan=plan)
    with pytest.raises(DataError, match="DP-SGD clips every example's gradient of the whole model"):
        trained(bench, sharded, QUIET)


class _NobodyElse:
    """The other machines of a site whose others are not there."""

    def gather(self) -> tuple[Host, ...]:
        return ()

    def changed(self) -> bool:
        return False

    def address(self, host: int) -> str:
        return f"127.64.3.{host + 1}"

    def start(self, host: int, sha256: str) -> tuple[RankProcess, Connection]:
        raise AssertionError("there is no other machine")

    def connect(self, ports: Sequence[Sequence[int]]) -> None:
        pass

    def end(self) -> None:
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="several machines need Linux")
def test_never_over_several_machines(bench: Bench) -> None:
    """The sampling bits are secret: where other machines may take part it is refused with the remedy, even
    while none is there, and rounds without it are trained."""
    config = DeviceConfig(device="cpu", parallel="ddp", processes=2, hosts=2)
    training = LocalTraining.owned(
        bench.task,
        config,
        app_dir=str(bench.app.folder),
        sha256=bench.app.sha256,
        client_dir=bench.folder,
        hosts=_NobodyElse(),
    )
    try:
        with pytest.raises(DataError, match=r"device\.hosts = 2; remove device\.hosts"):
            trained(bench, training, QUIET)
        bench.require_same_update(training, learning_rate=0.1, batch_size=8)
    finally:
        training.close()
