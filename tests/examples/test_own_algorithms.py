"""Algorithms outside the package: what they compute, on every executor, private and in secure sums."""

from __future__ import annotations

import ast
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import meadow
from meadow.apps.folder import App
from meadow.errors import ConfigError
from meadow.simulations.run import simulate
from meadow.task import Site
from meadow.training.module_params import build_module

EXAMPLES = Path(__file__).parents[2] / "examples" / "algorithms"
LINES_MAX = {"fedexp": 25, "moon": 60, "fedsam": 60, "distillation": 60}
SHORT = ("run.rounds=2", "run.cohort=5")
PRIVATE = (
    "privacy.differential_privacy.enabled=true",
    "privacy.differential_privacy.noise_multiplier=0.5",
    "privacy.differential_privacy.sampling=fixed",
)
RTOL, ATOL = 2e-4, 2e-5

Params = Mapping[str, np.ndarray[Any, Any]]


def run(name: str, out: Path, executor: str, *settings: str) -> tuple[Params, list[str]]:
    """Simulate an example; return the params, and why clients were run one by one."""
    reasons: list[str] = []

    def note(kind: str, detail: Mapping[str, Any]) -> None:
        if kind == "not_vectorized":
            reasons.append(str(detail["reason"]))

    summary = simulate(
        EXAMPLES / name, out=out, executor=executor, overrides=[*SHORT, *settings], on_event=note
    )
    assert summary["status"] == "finished", summary["cause"]
    return meadow.load_run(out).params(), reasons


@pytest.mark.parametrize("name", LINES_MAX)
def test_they_are_short_and_import_only_meadow(name: str) -> None:
    """Of Meadow only the public names: `import meadow`."""
    text = (EXAMPLES / name / f"{name}.py").read_text()
    assert len(text.splitlines()) <= LINES_MAX[name]
    for node in ast.walk(ast.parse(text)):
        modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            first = module.split(".")[0]
            assert module == "meadow" or first in {"numpy", "torch", *sys.stdlib_module_names}


@pytest.mark.parametrize("name", LINES_MAX)
def test_the_executors_agree(name: str, tmp_path: Path) -> None:
    """Sums of a cohort in one tensor are those of single clients; FedSAM says why it has none."""
    alone, _ = run(name, tmp_path / "a", "sequential")
    together, reasons = run(name, tmp_path / "b", "vectorized")
    for key, values in alone.items():
        np.testing.assert_allclose(together[key], values, rtol=RTOL, atol=ATOL)
    if name == "fedsam":
        assert reasons == ["under strategy 'fedsam:fedsam' clients make their steps themselves"]
    else:
        assert reasons == []


@pytest.mark.parametrize("name", ["fedexp", "moon"])
def test_worker_processes_load_it_themselves(name: str, tmp_path: Path) -> None:
    """The bits are those of one process: auxiliary tensors are summed in the workers, and client
    state goes to them and back."""
    apart = ("simulation.workers=1", "simulation.executor=processes")
    alone, _ = run(name, tmp_path / "a", "sequential")
    found, _ = run(name, tmp_path / "b", "processes", *apart)
    for key, values in alone.items():
        assert found[key].tobytes() == values.tobytes()


@pytest.mark.parametrize("name", ["moon", "fedsam", "distillation"])
def test_with_differential_privacy_where_it_is_declared(name: str, tmp_path: Path) -> None:
    """Clients' clipped deltas, one by one or in one tensor, under the same noise seed are alike: here
    without noise, so that they can be compared."""
    few = [s.replace("=0.5", "=1e-9") for s in PRIVATE]
    alone, _ = run(name, tmp_path / "a", "sequential", *few)
    together, _ = run(name, tmp_path / "b", "vectorized", *few)
    for key, values in alone.items():
        np.testing.assert_allclose(together[key], values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (PRIVATE, "send is more than that, or must not be added up"),
        (
            ("privacy.secure_aggregation.enabled=true", "run.min_clients=3"),
            "send numbers that clipping would change",
        ),
        (("run.update_norm_max=1",), "sends size too"),
    ],
)
def test_what_an_algorithm_does_not_declare_is_refused(
    settings: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    """FedExP's clients add a squared length to the sum, which is not to be clipped."""
    with pytest.raises(ConfigError, match=says):
        simulate(EXAMPLES / "fedexp", out=tmp_path / "a", overrides=[*SHORT, *settings])


def test_in_secure_sums_where_it_goes_with_them(tmp_path: Path) -> None:
    """MOON's clients send params alone: the sum is the mean of plain aggregation."""
    secure = ("privacy.secure_aggregation.enabled=true", "run.min_clients=5")
    hidden, _ = run("moon", tmp_path / "a", "sequential", *secure)
    plain, _ = run("moon", tmp_path / "b", "sequential", "run.min_clients=5")
    for key, values in plain.items():
        np.testing.assert_allclose(hidden[key], values, atol=1e-3)


# ------------------------------------------------------------------ by hand

CLIENTS, RATE = 3, 0.5
ONE_STEP = (
    f"simulation.clients={CLIENTS}",
    "run.cohort=1.0",
    "training.epochs=1",
    "training.batch_size=400",
    f"training.learning_rate={RATE}",
)


def begin(name: str) -> tuple[torch.nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return the example's model before the first round, and its clients' data."""
    app = App.load(EXAMPLES / name, overrides=list(ONE_STEP), environ={})
    task, config = app.load_task(), app.config
    assert config is not None
    from meadow.config.rules.builders import build_partition

    sites = [
        Site(index=i, count=CLIENTS, partition=build_partition(config), seed=config.run.seed)
        for i in range(CLIENTS)
    ]
    data: list[Any] = [task.client_data(site).train for site in sites]
    return build_module(task, config.run.seed), data


def test_fedexps_update_by_hand(tmp_path: Path) -> None:
    """One step a client; the server's step is max(1, mean |delta|^2 / (2 (|mean|^2 + epsilon)))."""
    epsilon = 1e-3
    found, _ = run("fedexp", tmp_path / "a", "sequential", *ONE_STEP, "run.rounds=1")
    module, data = begin("fedexp")
    start = {name: each.detach().double().clone() for name, each in module.named_parameters()}
    counts = torch.tensor([float(len(targets)) for _, targets in data], dtype=torch.float64)
    weights = counts / counts.sum()
    deltas = []
    for inputs, targets in data:
        module.zero_grad()
        cross_entropy(module(inputs), targets).backward()
        deltas.append({n: -RATE * p.grad.double() for n, p in module.named_parameters()})
    mean = {n: sum(w * d[n] for w, d in zip(weights, deltas, strict=True)) for n in start}
    lengths = [sum(float((each**2).sum()) for each in delta.values()) for delta in deltas]
    squared = sum(float((each**2).sum()) for each in mean.values())
    step = max(
        1.0, float(weights @ torch.tensor(lengths, dtype=torch.float64)) / (2 * (squared + epsilon))
    )
    assert step > 1, "the example must show an extrapolation"
    for name, values in found.items():
        expected = (start[name] + step * mean[name]).numpy()
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)


def test_moons_updates_by_hand(tmp_path: Path) -> None:
    """Two rounds, so that what a client trained last is not the global model."""
    mu, temperature = 1.0, 0.5
    found, _ = run("moon", tmp_path / "a", "sequential", *ONE_STEP)
    module, data = begin("moon")
    weights = [len(targets) / sum(len(t) for _, t in data) for _, targets in data]

    def features(params: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        return (inputs @ params["body.0.weight"].T + params["body.0.bias"]).relu()

    def similarity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))

    common = {n: p.detach().clone() for n, p in module.named_parameters()}
    previous = [common] * CLIENTS
    for _ in range(2):
        trained = []
        for (inputs, targets), before in zip(data, previous, strict=True):
            params = {n: each.clone().requires_grad_() for n, each in common.items()}
            own = features(params, inputs)
            outputs = own @ params["head.weight"].T + params["head.bias"]
            near = (similarity(own, features(common, inputs)) / temperature).exp()
            far = (similarity(own, features(before, inputs)) / temperature).exp()
            loss = cross_entropy(outputs, targets) - mu * (near / (near + far)).log().mean()
            gradients = torch.autograd.grad(loss, list(params.values()))
            trained.append(
                {
                    n: (p - RATE * g).detach()
                    for (n, p), g in zip(params.items(), gradients, strict=True)
                }
            )
        previous = trained
        common = {
            n: torch.stack([w * each[n] for w, each in zip(weights, trained, strict=True)]).sum(0)
            for n in common
        }
    for name, values in found.items():
        np.testing.assert_allclose(values, common[name].numpy(), rtol=2e-4, atol=2e-5)


def test_fedsams_update_by_hand(tmp_path: Path) -> None:
    """One step a client, along the gradient at rho times the unit gradient from the start."""
    rho = 0.05
    found, _ = run("fedsam", tmp_path / "a", "sequential", *ONE_STEP, "run.rounds=1")
    module, data = begin("fedsam")
    start = {name: each.detach().clone() for name, each in module.named_parameters()}
    total = sum(len(targets) for _, targets in data)
    expected = {name: torch.zeros_like(each) for name, each in start.items()}

    def gradients(at: dict[str, torch.Tensor], batch: Any) -> dict[str, torch.Tensor]:
        params = {name: each.clone().requires_grad_() for name, each in at.items()}
        outputs = torch.func.functional_call(module, params, (batch[0],))
        found = torch.autograd.grad(cross_entropy(outputs, batch[1]), list(params.values()))
        return dict(zip(params, found, strict=True))

    for batch in data:
        uphill = gradients(start, batch)
        norm = torch.cat([each.flatten() for each in uphill.values()]).norm()
        there = {name: start[name] + rho * each / norm for name, each in uphill.items()}
        for name, each in gradients(there, batch).items():
            expected[name] += len(batch[1]) / total * (start[name] - RATE * each)
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name].numpy(), rtol=RTOL, atol=ATOL)


# ------------------------------------------------------------------ from Python, and other doors


def test_from_python_it_is_what_meadow_toml_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the builder returns runs a task made in Python, and is named in the run folder."""
    written, _ = run("moon", tmp_path / "a", "sequential", "strategy.mu=0.5")
    shutil.copytree(EXAMPLES / "moon", tmp_path / "app")
    app = App.load(tmp_path / "app", environ={})
    task = app.load_task()
    builder = app.load_object("moon:moon")
    settings = {
        "run.min_clients": 2, "run.seed": 7, "training.epochs": 2, "training.batch_size": 16,
        "training.learning_rate": 0.1, "simulation.partition": "dirichlet", "simulation.alpha": 0.3,
    }  # fmt: skip
    for strategy in (builder(mu=0.5), {"name": "moon:moon", "mu": 0.5}):
        made = meadow.simulate(
            task, strategy=strategy, clients=8, rounds=2, cohort=5, settings=settings,
            executor="sequential", out=tmp_path / f"b{type(strategy).__name__}", progress=False,
        )  # fmt: skip
        assert made.config.strategy.name == "moon:moon"
        assert made.config.strategy.options["mu"] == 0.5
        for key, values in written.items():
            assert made.params()[key].tobytes() == values.tobytes()


def test_an_algorithm_that_only_this_process_knows(tmp_path: Path) -> None:
    """A builder within a function, as in a notebook, with a client's half."""

    class Halved(meadow.LocalAlgorithm):
        def corrected(self, gradient: Any, param: Any, start: Any, own: Any, shared: Any) -> Any:
            return gradient / 2

    @meadow.builder
    def halved() -> meadow.Algorithm:
        return meadow.averaging("halved", client=Halved())

    task = App.load(EXAMPLES / "moon", environ={}).load_task()
    common: dict[str, Any] = {"clients": 4, "rounds": 2, "seed": 1, "progress": False}
    by_half = meadow.simulate(
        task, strategy=halved(), training={"learning_rate": 0.2}, out=tmp_path / "a",
        executor="vectorized", **common,
    )  # fmt: skip
    plain = meadow.simulate(
        task, training={"learning_rate": 0.1}, out=tmp_path / "b", executor="sequential", **common
    )
    for key, values in plain.params().items():
        np.testing.assert_allclose(by_half.params()[key], values, rtol=RTOL, atol=ATOL)


OUTSIDE = """
import meadow, numpy as np

class Client(meadow.LocalAlgorithm):
    auxiliary, steers, keeps = ("control",), "control", "control"

    def corrected(self, gradient, param, start, own, shared):
        return gradient - own + shared

    def answer(self, end):
        client_state, sent = {}, {}
        for name in end.learned:
            key, delta = f"control/{name}", end.delta_of(name)
            own, shared = end.client_state[key], end.shared[key]
            far = end.along(end.steps * self.settings.learning_rate_now(), delta)
            client_state[key] = (own - shared - delta / far).to(own.dtype)
            sent[key] = shared + (client_state[key] - own)
        return meadow.Answer(params=end.trained, auxiliary=sent, client_state=client_state)

@meadow.builder(optimizer="plain sgd", keeps="a control variate")
def outside(*, participation: float = 1.0):
    def sent(state):
        control = state.slots["control"].items()
        return {**state.params, **{f"control/{name}": value for name, value in control}}

    def apply(state, aggregate):
        mean = {name: aggregate.mean[name] for name in state.params}
        control = {}
        for name, old in state.slots["control"].items():
            new = aggregate.mean[f"control/{name}"].astype(np.float64)
            moved = old.astype(np.float64) + participation * (new - old.astype(np.float64))
            control[name] = moved.astype(old.dtype)
        return state.moved(mean, control=control)

    def init(params):
        return meadow.State(
            params=params, slots={"control": {n: np.zeros_like(v) for n, v in params.items()}}
        )

    return meadow.Algorithm(
        name="outside", init=init, apply=apply, sent=sent, aggregator=meadow.MeanAggregator(),
        auxiliary=("control",), client=Client(),
    )
"""


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_scaffold_outside_of_the_package_is_meadows(executor: str, tmp_path: Path) -> None:
    """The same algorithm through the public door gives the same bits, and keeps the same state."""
    shutil.copytree(EXAMPLES / "moon", tmp_path / "app")
    (tmp_path / "app" / "outside.py").write_text(OUTSIDE)
    text = (tmp_path / "app" / "meadow.toml").read_text()
    _, _, rest = text.partition("[training]")
    found = []
    for name in ("scaffold", "outside:outside"):
        section = (
            f'[run]\nrounds = 3\nseed = 7\n[strategy]\nname = "{name}"\nparticipation = 0.625\n'
        )
        (tmp_path / "app" / "meadow.toml").write_text(f"{section}[training]{rest}")
        out = tmp_path / name.partition(":")[0]
        summary = simulate(tmp_path / "app", out=out, executor=executor, overrides=["run.cohort=5"])
        assert summary["status"] == "finished", summary["cause"]
        found.append(meadow.load_run(out).params())
    inside, outside = found
    for key, values in inside.items():
        assert outside[key].tobytes() == values.tobytes(), key


def test_a_run_from_python_goes_on(tmp_path: Path) -> None:
    """After an interrupt: by its name and arguments in the run folder, to the same bits."""
    app = App.load(EXAMPLES / "moon", environ={})
    task, builder = app.load_task(), app.load_object("moon:moon")
    common: dict[str, Any] = {"clients": 4, "seed": 1, "progress": False, "executor": "sequential"}
    whole = meadow.simulate(task, strategy=builder(mu=0.5), rounds=3, out=tmp_path / "a", **common)

    def stop(kind: str, detail: Mapping[str, Any]) -> None:
        if kind == "round_committed" and detail["round"] == 1:
            signal.raise_signal(signal.SIGINT)

    part = meadow.simulate(
        task, strategy=builder(mu=0.5), rounds=3, out=tmp_path / "b", on_event=stop, **common
    )
    assert part.status == "stopped"
    again = meadow.resume(tmp_path / "b", task=task, strategy=builder(mu=0.5))
    assert again.status == "finished"
    for key, values in whole.params().items():
        assert again.params()[key].tobytes() == values.tobytes()


def test_compression_only_where_it_is_declared(tmp_path: Path) -> None:
    """A squared length is not to be rounded; params alone are compressed as everybody's."""
    upload = ("compression.upload=int8", *SHORT)
    with pytest.raises(ConfigError, match="compression would change the auxiliary tensors size of"):
        simulate(EXAMPLES / "fedexp", out=tmp_path / "a", overrides=list(upload))
    run("moon", tmp_path / "b", "sequential", "compression.upload=int8")


class Counting(meadow.LocalAlgorithm):
    """Answers with two auxiliary tensors beside its params."""

    tensors = ("beside/steps", "beside/pair")

    def answer(self, end: meadow.LocalRound) -> meadow.Answer:
        pair = torch.stack([end.steps, end.squared_delta()], -1) + end.shared["beside/pair"]
        return meadow.Answer(
            params=end.trained, auxiliary={"beside/steps": end.steps, "beside/pair": pair}
        )


@meadow.builder(privacy=("client",), clippable=True)
def counting() -> meadow.Algorithm:
    """The server adds what it is told to every param, so that it shows in them."""

    def apply(state: meadow.State, aggregate: meadow.Aggregate) -> meadow.State:
        said = float(aggregate.mean["beside/steps"]) + float(aggregate.mean["beside/pair"].sum())
        moved = {name: aggregate.mean[name] + 0.01 * said for name in state.params}
        return state.moved(moved, sent={"beside/pair": aggregate.mean["beside/pair"]})

    shapes: dict[str, tuple[int, ...]] = {"beside/steps": (), "beside/pair": (2,)}
    return meadow.averaging("counting", apply=apply, client=Counting(), tensors=shapes)


@pytest.mark.parametrize("verify", [False, True])
def test_auxiliary_tensors_under_differential_privacy(verify: bool, tmp_path: Path) -> None:
    """They are clipped with the params, as one vector, one by one or in one tensor."""
    task = App.load(EXAMPLES / "moon", environ={}).load_task()
    private = meadow.DifferentialPrivacy(
        enabled=True, noise_multiplier=1e-9, clip_norm=0.5, sampling="fixed"
    )
    found = {}
    for executor in ("sequential", "vectorized"):
        found[executor] = meadow.simulate(
            task, strategy=counting(), clients=6, rounds=2, seed=1, executor=executor,
            cohort=6, privacy=meadow.Privacy(differential_privacy=private), progress=False,
            settings={"simulation.verify": verify}, out=tmp_path / executor,
        ).params()  # fmt: skip
    for key, values in found["sequential"].items():
        np.testing.assert_allclose(found["vectorized"][key], values, rtol=RTOL, atol=1e-4)


def test_what_the_server_sends_is_in_its_checkpoints(tmp_path: Path) -> None:
    """Slots of names with a slash are there again after an interrupt."""
    task = App.load(EXAMPLES / "moon", environ={}).load_task()
    common: dict[str, Any] = {"clients": 4, "rounds": 3, "seed": 1, "progress": False}

    def stop(kind: str, detail: Mapping[str, Any]) -> None:
        if kind == "round_committed" and detail["round"] == 2:
            signal.raise_signal(signal.SIGINT)

    whole = meadow.simulate(task, strategy=counting(), out=tmp_path / "a", **common)
    part = meadow.simulate(task, strategy=counting(), out=tmp_path / "b", on_event=stop, **common)
    assert part.status == "stopped"
    again = meadow.resume(part, strategy=counting())
    for key, values in whole.params().items():
        assert again.params()[key].tobytes() == values.tobytes()


def test_text_arguments_stay_text(tmp_path: Path) -> None:
    """From Python to an app folder, also where TOML would read a number."""
    shutil.copytree(EXAMPLES / "moon", tmp_path / "app")
    (tmp_path / "app" / "named.py").write_text(
        "import meadow\n@meadow.builder\ndef named(*, tag: str = 'a'):\n"
        "    assert isinstance(tag, str)\n    return meadow.averaging('named')\n"
    )
    text = (tmp_path / "app" / "meadow.toml").read_text()
    (tmp_path / "app" / "meadow.toml").write_text(text.replace("mu = 1.0\n", ""))
    made = meadow.simulate(
        tmp_path / "app", strategy={"name": "named:named", "tag": "1e3"}, rounds=1,
        executor="sequential", out=tmp_path / "out", progress=False,
    )  # fmt: skip
    assert made.config.strategy.options == {"tag": "1e3"}


def test_a_second_look_allows_what_rounding_explains(tmp_path: Path) -> None:
    """In bf16 two ways of computing are far apart; beside an auxiliary tensor of one value too."""
    bf16 = ("training.precision=bf16", "run.rounds=1", "run.cohort=1.0", "run.seed=7")
    run("fedexp", tmp_path / "a", "vectorized", *bf16)


def test_an_algorithm_of_this_process_with_an_app_folder(tmp_path: Path) -> None:
    """It is needed again to go on, and other processes cannot have it."""

    class Half(meadow.LocalAlgorithm):
        def corrected(self, gradient: Any, param: Any, start: Any, own: Any, shared: Any) -> Any:
            return gradient / 2

    def stop(kind: str, detail: Mapping[str, Any]) -> None:
        if kind == "round_committed" and detail["round"] == 1:
            signal.raise_signal(signal.SIGINT)

    shutil.copytree(EXAMPLES / "moon", tmp_path / "app")
    text = (tmp_path / "app" / "meadow.toml").read_text()
    before, _, rest = text.partition("[strategy]")
    (tmp_path / "app" / "meadow.toml").write_text(before + rest[rest.index("[training]") :])
    mine = meadow.averaging("mine", client=Half())
    common: dict[str, Any] = {"rounds": 2, "progress": False, "strategy": mine}
    whole = meadow.simulate(tmp_path / "app", out=tmp_path / "a", executor="sequential", **common)
    part = meadow.simulate(
        tmp_path / "app", out=tmp_path / "b", executor="sequential", on_event=stop, **common
    )
    assert part.status == "stopped"
    with pytest.raises(
        ConfigError, match=r"its algorithm 'mine' was made in Python; use meadow.resume"
    ):
        meadow.resume(part)
    again = meadow.resume(part, strategy=mine)
    for key, values in whole.params().items():
        assert again.params()[key].tobytes() == values.tobytes()
    with pytest.raises(ConfigError, match="this algorithm was made in this one"):
        meadow.simulate(tmp_path / "app", out=tmp_path / "c", executor="processes", **common)
