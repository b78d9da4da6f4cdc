"""Compression in a simulation: bytes, accuracy, interruptions, and clients that send rubbish."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from meadow.compression.client import RESIDUAL, compressed_app
from meadow.compression.grid import CompressionGrid
from meadow.compression.packet import PACKED
from meadow.compression.terms import CompressionTerms
from meadow.config.load import make_config
from meadow.errors import ConfigError
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.grids.simulation_grid import SimulationGrid
from meadow.simulations.population.clients import SimulatedClients
from meadow.simulations.run import resume, simulate
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan

identify_process(run_id=1, node_id=0)

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
CLIENTS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Simulate the digits under some settings; returns the accuracy, the model and the rows."""

    @cache
    def simulated(*overrides: str, executor: str = "sequential"):
        out = tmp_path_factory.mktemp("runs") / "run"
        settings = ["simulation.clients=4", "run.min_clients=4", "run.rounds=8", *overrides]
        summary = simulate(DIGITS, overrides=settings, out=out, executor=executor)
        assert summary["status"] == "finished", summary["cause"]
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        assert {row["clients"] for row in rows} == {4}
        return summary["final"]["server"]["accuracy"], (out / "model.safetensors"), rows[0]

    return simulated


@pytest.mark.parametrize(
    ("settings", "share", "points"),
    [
        (("compression.upload=fp16",), 0.5, 0.01),
        (("compression.upload=bf16",), 0.5, 0.01),
        (("compression.upload=int8",), 0.25, 0.01),
        (("compression.upload=int8", "compression.zstd=true"), 0.25, 0.01),
        (("compression.upload=int4",), 0.125, 0.02),
        (("compression.upload=top_k", "compression.fraction=0.1"), 0.2, 0.03),
        (("compression.upload=random_k", "compression.fraction=0.5"), 0.5, 0.05),
        (("compression.upload=low_rank", "compression.rank=4"), 0.6, 0.03),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else None,
)
def test_fewer_bytes_and_nearly_the_accuracy(run, settings, share, points):
    """The rows count the bytes that travel; the model is nearly as good."""
    plain, _, plain_row = run()
    accuracy, _, row = run(*settings)
    assert row["bytes_received"] <= plain_row["bytes_received"] * share * 1.02
    assert row["bytes_sent"] == plain_row["bytes_sent"]
    assert accuracy > plain - points


def test_both_ways(run):
    """Params to clients shrink too, to a quarter, for training and for evaluation."""
    plain, _, plain_row = run()
    accuracy, _, row = run("compression.upload=int8", "compression.download=int8")
    assert row["bytes_sent"] <= plain_row["bytes_sent"] * 0.26
    assert accuracy > plain - 0.01


def test_none_is_the_plain_run(run):
    """Compression that does nothing leaves every bit as it was."""
    model = run("compression.upload=none")[1]
    assert model.read_bytes() == run()[1].read_bytes()


def test_worker_processes_give_the_same_model(run):
    """What clients keep between rounds goes with them."""
    settings = ("compression.upload=top_k", "run.rounds=3")
    one = run(*settings)[1].read_bytes()
    assert one == run(*settings, executor="processes")[1].read_bytes()


def test_an_interrupted_run_goes_on_to_the_same_bits(run, tmp_path):
    """With error feedback and rounded params, a run that is stopped and resumed is the same."""
    settings = ["compression.upload=top_k", "compression.download=int8", "run.rounds=4"]
    out, rounds = tmp_path / "run", []

    class Interrupted(Exception):
        pass

    def stop(kind, detail):
        if kind == "round_committed":
            rounds.append(detail["round"])
            if len(rounds) == 2:
                raise Interrupted

    whole = ["simulation.clients=4", "run.min_clients=4", "run.rounds=8", *settings]
    simulate(DIGITS, overrides=whole, out=out, executor="sequential", on_event=stop)
    summary = resume(out)
    assert summary["status"] == "finished" and summary["rounds"] == 4
    expected = run(*settings)[1].read_bytes()
    assert (out / "model.safetensors").read_bytes() == expected


# ---------------------------------------------------------------- clients by hand


def moving_app(spoil=lambda reply, node: None) -> ClientApp:
    """Return an app whose clients add their number to every param, and count up."""

    class App(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            arrays = message.content["arrays"]
            assert set(message.content) == {"arrays", "config"}
            params = {
                name: np.asarray(old + np.asarray(context.node_id, old.dtype))
                for name, old in arrays_to_params(arrays).items()
            }
            content = RecordDict({"metrics": MetricRecord({"num-examples": 1})})
            if message.metadata.message_type == "train":
                content["arrays"] = params_to_arrays(params)
            return Message(content, reply_to=message)

    inner = compressed_app(App())

    class Spoiled(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            reply = inner(message, context)
            spoil(reply, context.node_id)
            return reply

    return Spoiled()


def federate(terms: CompressionTerms, app: ClientApp, rounds: int = 2):
    """Run FedAvg over clients of an app; returns the params and the clients."""
    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
    grid = CompressionGrid(SimulationGrid(SequentialExecutor(app, clients), clients), terms)
    strategy = FederatedStrategy(fedavg(), RoundPlan(min_clients=2))
    before = {"w": np.linspace(-1, 1, 50, dtype=np.float32), "seen": np.asarray(7)}
    result = strategy.start(
        grid, params_to_arrays(before), num_rounds=rounds, train_config=ConfigRecord({})
    )
    return arrays_to_params(result.arrays), before, clients


@pytest.mark.parametrize("upload", ["fp16", "int8", "low_rank"])
@pytest.mark.parametrize("download", ["none", "bf16", "int8"])
def test_rounding_of_what_is_sent_is_not_in_the_model(upload, download):
    """The model moves by what clients say they changed, from where it was, not from its copy."""
    found, before, _ = federate(CompressionTerms(upload=upload, download=download), moving_app())
    np.testing.assert_allclose(found["w"], before["w"] + 4, atol=0.05)
    assert found["seen"] == 7 + 4


def test_what_is_left_out_is_kept():
    """A client keeps exactly what its sparse replies lacked."""
    terms = CompressionTerms(upload="top_k", fraction=0.1)
    found, before, clients = federate(terms, moving_app(), rounds=1)
    kept = clients.context_of(2).state[RESIDUAL]
    assert isinstance(kept, ArrayRecord)
    row = arrays_to_params(kept)["row"]
    assert sorted(row.tolist()) == pytest.approx([0.0] * 5 + [2.0] * 45, abs=1e-6)
    assert found["w"].sum() - before["w"].sum() == pytest.approx(5 * 2, abs=1e-4)


def test_rubbish_is_that_client_s_failure():
    """A reply that cannot be unpacked fails; the others count, as do plain replies."""

    def spoil(reply: Message, node: int) -> None:
        if node == 3 and "arrays" in reply.content:
            arrays = {PACKED: np.zeros(3, np.uint8)}
            reply.content["arrays"] = params_to_arrays(arrays)

    found, before, _ = federate(CompressionTerms(upload="int8"), moving_app(spoil))
    np.testing.assert_allclose(found["w"], before["w"] + 3, atol=0.05)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"compression": {"rank": 2}}, "rank is only for when compression.upload"),
        ({"compression": {}, "simulation": {"executor": "vectorized"}}, "nobody compresses"),
        ({"compression": {}, "simulation": {"adversaries": {}}}, "compression hides"),
        (
            {
                "run": {"min_clients": 5},
                "simulation": {"clients": 5},
                "compression": {"upload": "top_k"},
                "privacy": {"secure_aggregation": {"enabled": True}},
            },
            "cannot be added up under masks",
        ),
    ],
)
def test_what_cannot_be_is_refused(values, text):
    """Impossible combinations are refused when the configuration is read."""
    with pytest.raises(ConfigError, match=text):
        make_config(values)
    with pytest.raises(ConfigError, match="nobody compresses"):
        simulate(DIGITS, overrides=["compression.upload=int8"], executor="vectorized")
