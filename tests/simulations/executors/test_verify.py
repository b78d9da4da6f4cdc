"""The second look at a cohort that is trained at once: two clients, alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from torch import nn

import meadow
from meadow.errors import AgreementError
from meadow.flower.messages import identify_process, params_to_arrays
from meadow.simulations.executors import auto
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.executors.vectorized.agreement import check_agreement
from meadow.simulations.executors.vectorized.executor import VectorizedExecutor
from meadow.simulations.population.clients import SimulatedClients
from meadow.simulations.run import simulate
from meadow.strategies.rounds.broadcast import Broadcast
from meadow.training.module_params import build_module, params_of_module

identify_process(run_id=1, node_id=0)


class Wrong(torch.autograd.Function):
    """A function whose rule for many clients at once is not what it does for one."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 2

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x * 2 + 0.1 * x.mean(in_dims[0], keepdim=True), in_dims[0]


class UsesWrong(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Wrong.apply(self.a(x))
        return made


class Magnifies(nn.Module):
    """Rounding grows a millionfold: no two orders of the same sums agree."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 64), nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.b(torch.sin(3e4 * self.a(x)))
        return made


def run(build: Any, *, verify: bool, settings: dict[str, Any] | None = None) -> Any:
    def load(site: meadow.Site) -> meadow.ClientData:
        generator = torch.Generator().manual_seed(site.index)
        inputs = torch.randn(12 + site.index, 8, generator=generator)
        targets = torch.randint(0, 3, (len(inputs),), generator=generator)
        return meadow.ClientData(train=(inputs, targets))

    task = meadow.Task(model=build, loss=meadow.cross_entropy, client_data=load)
    clients = SimulatedClients(4, run_id=1, run_config={})
    executor = VectorizedExecutor(
        task,
        clients,
        device="cpu",
        combine=True,
        other=SequentialExecutor(meadow.client_app(task, device="cpu"), clients),
        verify=verify,
    )
    config = ConfigRecord(
        {"batch-size": 5, "seed": 1, "server-round": 1, "learning-rate": 0.1, **(settings or {})}
    )
    arrays = params_to_arrays(params_of_module(build_module(task, 1)))
    content = RecordDict({"arrays": arrays, "config": config})
    order = Broadcast(content, MessageType.TRAIN, (1, 2, 3, 4), group_id="1", id_prefix="m-")
    return list(executor.execute(order)), clients


def test_a_wrong_rule_fails_the_run() -> None:
    """The sentence names the client and the tensor, and what to do."""
    with pytest.raises(AgreementError, match=r"'a\.\w+' of client \d .* apart.*sequential"):
        run(UsesWrong, verify=True)


def test_the_check_can_be_switched_off() -> None:
    """Then the run goes on as the rule says."""
    replies, _ = run(UsesWrong, verify=False)
    assert not any(reply.has_error() for reply in replies)


def test_magnified_rounding_is_no_disagreement() -> None:
    """What the last bits of the params change as much is not the executor's doing."""
    replies, _ = run(Magnifies, verify=True)
    assert not any(reply.has_error() for reply in replies)


class Decides:
    """Clients alone: rounding decides which of two results they have, and seldom for the second one."""

    name, combines = "decides", False

    def __init__(self, second_at: int, second: float) -> None:
        self._left, self._second = second_at, second
        self.trained = 0

    def execute(self, messages: Sequence[Message]) -> Iterator[Message]:
        self._left -= 1
        for message in messages:
            self.trained += 1
            yield reply_of(message, self._second if self._left == 0 else 1.0)

    def close(self) -> None:
        """Nothing is held."""


def reply_of(message: Message, value: float) -> Message:
    trained = params_to_arrays({"w": np.full(3, value, np.float32)})
    return Message(RecordDict({"arrays": trained}), reply_to=message)


def compared(found: float, alone: Decides) -> None:
    start = params_to_arrays({"w": np.ones(3, np.float32)})
    content = RecordDict({"arrays": start, "config": ConfigRecord({})})
    order = Broadcast(content, MessageType.TRAIN, (1, 2), group_id="1", id_prefix="m-")
    first, second = order.to([1, 2])
    replies = {1: reply_of(first, found), 2: reply_of(second, 1.0)}
    check_agreement(order, replies, alone, SimulatedClients(2, run_id=1, run_config={}))


def test_what_rounding_decides_is_no_disagreement() -> None:
    """The second of two right results is accepted, though the first four trials do not hit it; the
    client that agreed is not trained again after those."""
    alone = Decides(second_at=8, second=1.3)
    compared(1.3, alone)
    assert alone.trained == 2 + 4 * 2 + 3


def test_a_third_result_is_a_disagreement() -> None:
    """However far apart the two are, it must be one of them, if the first trials hit but one."""
    with pytest.raises(AgreementError, match=r"'w' of client 1 is up to 0\.6 apart"):
        compared(1.6, Decides(second_at=8, second=1.3))
    with pytest.raises(AgreementError):
        compared(1.3002 * 1.0005, Decides(second_at=8, second=1.3))


def test_a_value_that_is_no_number_is_a_disagreement() -> None:
    """Wherever the client alone has a number, or the other way round."""
    with pytest.raises(AgreementError, match="client 1"):
        compared(float("nan"), Decides(second_at=0, second=0.0))
    with pytest.raises(AgreementError, match="client 1"):
        compared(float("inf"), Decides(second_at=0, second=0.0))


def test_a_simulation_ends_with_the_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named vectorized the run fails; auto takes another executor and says why."""
    with_rule = (Path(__file__).read_text()).split("class Magnifies")[0].split("class Wrong")[1]
    app = tmp_path / "app"
    app.mkdir()
    (app / "task.py").write_text(
        "from typing import Any\nimport meadow\nimport torch\nfrom torch import nn\n\n\n"
        f"class Wrong{with_rule}\n"
        "def load(site):\n"
        "    inputs = torch.randn(20, 8, generator=torch.Generator().manual_seed(site.index))\n"
        "    return meadow.ClientData(train=(inputs, inputs.argmax(1) % 3))\n\n\n"
        "task = meadow.Task(model=UsesWrong, loss=meadow.cross_entropy, client_data=load)\n"
    )
    (app / "meadow.toml").write_text(
        "[run]\nrounds = 2\n[training]\nbatch_size = 5\n[simulation]\nclients = 4\n"
    )
    failed = simulate(app, executor="vectorized", out=tmp_path / "failed")
    assert failed["status"] == "failed" and "does not train this model" in failed["cause"]
    monkeypatch.setattr(auto, "SHORT_S", 0.0)
    events: list[Any] = []
    fine = simulate(
        app, out=tmp_path / "auto", on_event=lambda kind, detail: events.append((kind, detail))
    )
    assert fine["status"] == "finished"
    (chosen,) = [detail for kind, detail in events if kind == "executor_chosen"]
    assert chosen["executor"] != "vectorized" and "apart" in chosen["reason"]
