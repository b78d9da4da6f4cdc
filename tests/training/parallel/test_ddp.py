"""Two ranks give what one process gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from meadow.errors import DataError
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.strategies.algorithms.auxiliary_names import auxiliary_name
from meadow.task import Site
from meadow.training.local.site import LocalSite
from meadow.training.local.training import LocalTraining
from meadow.training.module_params import build_module, params_of_module
from meadow.training.parallel import shared_sums
from meadow.training.parallel.plan import ParallelPlan
from meadow.training.settings import TrainingSettings

from .conftest import Bench, distance

PLAIN = {"learning_rate": 0.1, "epochs": 2}


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 8},  # 53 examples: the last batch has 5
        {"batch_size": 13, "momentum": 0.9},  # the last batch has a single one
        {"batch_size": 5, "accumulation_steps": 3, "optimizer": "adam", "learning_rate": 0.01},
        {"batch_size": 16, "proximal_mu": 0.5, "gradient_clip_norm": 0.5},
    ],
)
def test_two_ranks_make_one_update(
    bench: Bench, pair: LocalTraining, settings: dict[str, Any]
) -> None:
    """Params, buffers, samples and metrics are those of one process with the same batches."""
    bench.require_same_update(pair, **PLAIN | settings)


def test_ranks_evaluate_together(bench: Bench, pair: LocalTraining) -> None:
    """Each rank passes its part of the examples, and the metrics are those of one process."""
    alone = bench.training()
    examples, means = alone.evaluate(bench.round(alone, batch_size=8), "train")
    bench.passes(0), bench.passes(1)
    seen, told = pair.evaluate(bench.round(pair, batch_size=8), "train")
    assert (seen, examples) == (53, 53)
    assert told == pytest.approx(means, rel=1e-5)
    assert (bench.passes(0), bench.passes(1)) == ([26], [27])


def test_where_no_memory_is_shared(
    bench: Bench, pair: LocalTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks exchange their gradients through sockets then, and make the same update."""
    shared, *_ = bench.train(pair, batch_size=8, **PLAIN)
    assert not [*shared_sums.FOLDER.glob("meadow-sums-*")], "a file is left behind"
    monkeypatch.setattr(shared_sums, "FOLDER", bench.folder / "missing")
    pair.close()  # a new group makes new sums
    ours, *_ = bench.train(pair, batch_size=8, **PLAIN)
    assert distance(ours, shared) < 1e-6
    pair.close()


@pytest.mark.parametrize("end", ["kill-1", "stop-1"])
def test_a_lost_rank_costs_no_round(bench: Bench, pair: LocalTraining, end: str) -> None:
    """A rank that is killed or hangs in the middle is replaced, and the update is the same."""
    expected, *_ = bench.train(pair, batch_size=8, **PLAIN)
    bench.say(end, 9)
    ours, *_ = bench.train(pair, batch_size=8, **PLAIN)
    assert not (bench.folder / end).exists()
    assert distance(ours, expected) == 0


def test_what_a_rank_raises_is_said(bench: Bench, pair: LocalTraining) -> None:
    """An exception of the app in another rank is this round's, with its place in the app."""
    bench.say("raise-1", 1)
    with pytest.raises(DataError, match=r"in another process: ValueError: a bad scan \(task.py"):
        bench.train(pair, batch_size=8)
    expected, *_ = bench.train(bench.training(), batch_size=8)
    assert distance(bench.train(pair, batch_size=8)[0], expected) < 1e-5


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [("scaffold", "control"), ("feddyn", "learned"), ("fedlion", "momentum"), ("task:pulled", "")],
)
def test_corrected_steps_are_the_same_on_all_ranks(
    bench: Bench, pair: LocalTraining, algorithm: str, kind: str
) -> None:
    """Over two rounds the answers, auxiliary included, are those of one process; so is what the
    client keeps, also under an algorithm of the app's own."""
    said = {"batch-size": 8, "learning-rate": 0.05, "epochs": 2, "algorithm": algorithm}
    if algorithm == "fedlion":
        said |= {"optimizer": "lion", "learning-rate": 0.001}
    identify_process(run_id=1, node_id=1)
    answers = []
    for training in (bench.training(), pair):
        module = bench.module_of(training)
        site = LocalSite(
            bench.task, Site(index=0, count=2), training=training, module=module, copies=True
        )
        params = params_of_module(build_module(bench.task, 5))
        learned = [name for name, _ in build_module(bench.task, 5).named_parameters()]
        for name in learned if kind else ():
            begun = np.full_like(params[name], 0.01)
            count = np.zeros((), np.int8)
            params[auxiliary_name(kind, name)] = count if kind == "learned" else begun
        state = RecordDict()
        for number in (1, 2):
            config = ConfigRecord({**said, "server-round": number})
            content = RecordDict({"arrays": params_to_arrays(params), "config": config})
            reply = site.train(Message(content, 1, "train"), client=1, state=state)
            params = arrays_to_params(reply.content.array_records["arrays"])
        kept = {"kept": state.array_records["algorithm"]} if algorithm != "fedlion" else {}
        own = {f"kept {n}": a for r in kept.values() for n, a in arrays_to_params(r).items()}
        answers.append({n: torch.tensor(np.asarray(a)).float() for n, a in (params | own).items()})
    assert distance(answers[1], answers[0]) < 1e-5


def test_algorithms_that_need_one_process_say_so(bench: Bench, pair: LocalTraining) -> None:
    """Params of a client's own, and sharded ones that are to be corrected, are a sentence."""
    with pytest.raises(DataError, match=r"algorithm 'ditto'\) need the whole model in one process"):
        pair.alone(TrainingSettings(algorithm="ditto"))
    plan = ParallelPlan(kind="fsdp", devices=("cpu", "cpu"), timeout_s=1.0)
    sharded = LocalTraining(bench.task, "cpu", plan=plan)
    with pytest.raises(DataError, match="'scaffold' corrects the steps of the whole model"):
        sharded.require_whole("algorithm 'scaffold'", "corrects the steps")
