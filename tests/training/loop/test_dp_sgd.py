"""DP-SGD on a client: what an example can change, the noise, the coins, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from meadow.errors import DataError
from meadow.privacy.dp.example_level import ExampleTerms
from meadow.privacy.dp.mechanisms.noise import generator_of
from meadow.randomness.entropy import system_entropy
from meadow.task import Task
from meadow.training.batches import chosen_from
from meadow.training.local.app import client_app
from meadow.training.local.training import LocalTraining
from meadow.training.loop.dp_sgd import draw_examples, step_noise, train_dp_sgd
from meadow.training.settings import TrainingSettings

pytest.importorskip("opacus")
EVERY = ExampleTerms(clip_norm=0.5, noise_multiplier=1e-9, rate=1.0)
"""All examples in every step, and noise too small to be seen: then training is no chance."""


def model() -> nn.Module:
    """Return a module whose layers Opacus treats each in its own way."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2))


TASK = Task(
    model=model,
    loss=lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"),
    client_data=lambda site: None,  # type: ignore[arg-type, return-value]
)


def data_of(count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Return examples of very different lengths."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 3, generator=generator) * torch.arange(1, count + 1)[:, None]
    return inputs, torch.arange(count) % 2


def trained(
    data: Any, terms: ExampleTerms = EVERY, build: Any = model, task: Task = TASK, **settings: Any
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the params before and after a round."""
    torch.manual_seed(0)
    module = build()
    before = {name: each.detach().clone() for name, each in module.named_parameters()}
    said = TrainingSettings(learning_rate=1.0, **settings)
    assert train_dp_sgd(task, module, data, said, terms, client=1, device="cpu") == len(data[1])
    assert not any(hasattr(each, "grad_sample") for each in module.parameters())
    return before, {name: each.detach() for name, each in module.named_parameters()}


def change(before: Any, after: Any) -> torch.Tensor:
    """Return all changes in a row."""
    return torch.cat([(after[name] - before[name]).flatten() for name in before])


def test_a_step_is_the_mean_of_clipped_gradients() -> None:
    """Example by example, as computed one at a time."""
    data = data_of()
    before, after = trained(data)
    torch.manual_seed(0)
    module, total, clipped = model(), torch.zeros(34), 0
    for place in range(6):
        module.zero_grad()
        one = slice(place, place + 1)
        nn.functional.cross_entropy(module(data[0][one]), data[1][one]).backward()
        gradient = torch.cat([each.grad.flatten() for each in module.parameters()])  # type: ignore
        clipped += int(gradient.norm() > 0.5)
        total += gradient * min(1.0, 0.5 / float(gradient.norm()))
    assert clipped > 0
    np.testing.assert_allclose(change(before, after), -total / 6, atol=1e-6)


def test_no_record_moves_a_step_by_more_than_the_clip() -> None:
    """By brute force: every example in turn is made nothing of, by giving it no finite gradient."""
    data, moved = data_of(), []
    whole = change(*trained(data))
    for place in range(6):
        inputs = data[0].clone()
        inputs[place] = math.nan
        without = change(*trained((inputs, data[1])))
        assert without.isfinite().all()
        moved.append(float((whole - without).norm()))
    assert max(moved) <= 0.5 / 6 * (1 + 1e-4)
    assert max(moved) > 0.49 / 6


def test_the_noise_of_a_step_is_gaussian_of_the_planned_scale() -> None:
    """A twentieth more or less is rejected."""
    from scipy import stats

    def fits(values: np.ndarray[Any, Any]) -> bool:
        alike = stats.kstest(values, stats.norm(scale=1.5).cdf).pvalue > 1e-6
        return bool(alike and abs(values.std() / 1.5 - 1) < 0.02)  # six standard errors

    terms = ExampleTerms(clip_norm=0.5, noise_multiplier=3.0, rate=0.1)
    noise = step_noise(torch.zeros(200, 200), terms, generator_of(system_entropy)).flatten().numpy()
    assert fits(noise) and not fits(noise * 1.05) and not fits(noise * 0.95)


def test_the_divisor_is_the_mean_number_of_drawn_records() -> None:
    """Not how many were drawn: a step in which hardly anybody is drawn is noise over that mean."""
    terms = ExampleTerms(clip_norm=1e-6, noise_multiplier=2e6, rate=0.75)
    moved = [change(*trained(data_of(2), terms)) for _ in range(40)]
    assert terms.steps(1) == 1
    stddev = float(torch.cat(moved).std())
    assert stddev == pytest.approx(2.0 / (0.75 * 2), rel=0.12)


def test_coins_are_independent_and_of_the_planned_rate() -> None:
    """Batches have a binomial size, and no example prevails; fixed sizes would fail."""
    coins = generator_of(system_entropy)
    drawn = [draw_examples(400, 0.1, coins) for _ in range(500)]
    sizes = np.array([len(each) for each in drawn])
    assert abs(sizes.mean() - 40) < 5 * 6 / math.sqrt(500)
    assert 0.7 < sizes.var() / 36 < 1.4
    often = np.bincount(np.concatenate(drawn), minlength=400)
    assert abs(often / 500 - 0.1).max() < 6 * 0.3 / math.sqrt(500)


def test_noise_and_coins_are_not_the_seeds() -> None:
    """The same seed twice gives other params."""
    terms = ExampleTerms(clip_norm=0.5, noise_multiplier=1.0, rate=0.5)
    one, other = (change(*trained(data_of(), terms, seed=7)) for _ in range(2))
    assert not torch.equal(one, other)


def test_a_round_has_as_many_steps_as_are_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where batches are empty: a step without examples is one of noise."""
    from meadow.training.loop import dp_sgd

    steps: list[int] = []
    descend = dp_sgd.descend
    monkeypatch.setattr(
        dp_sgd,
        "descend",
        lambda *given, step: (steps.append(step), descend(*given, step=step))[1],
    )
    terms = ExampleTerms(clip_norm=0.5, noise_multiplier=1.0, rate=0.02)
    before, after = trained(data_of(2), terms, epochs=2)
    assert len(steps) == terms.event(2).steps == 100
    assert change(before, after).abs().min() > 0


def test_fedprox_pulls_after_the_noise() -> None:
    """Its term depends on no data; nearly nothing is left of a round with a strong pull."""
    free = change(*trained(data_of(), epochs=20))
    pulled = change(*trained(data_of(), epochs=20, proximal_mu=0.9))
    assert pulled.norm() < 0.5 * free.norm()


def test_pieces_of_a_batch_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory does not hold the gradients of all examples at once."""
    from meadow.training.loop import dp_sgd

    whole = change(*trained(data_of()))
    monkeypatch.setattr(dp_sgd, "GRADIENT_BYTES", 250)
    np.testing.assert_allclose(change(*trained(data_of())), whole, atol=1e-6)


def test_datasets_are_asked_for_the_drawn_samples() -> None:
    """Tensors, subsets and Datasets with code of their own; a DataLoader makes its own batches."""
    inputs, targets = data_of()
    pool = torch.utils.data.TensorDataset(inputs, targets)
    for data in ((inputs, targets), pool, torch.utils.data.Subset(pool, range(6)), [*pool]):
        batch = chosen_from(data, torch.tensor([4, 1]))  # type: ignore[arg-type]
        assert torch.equal(batch[0], inputs[[4, 1]]) and batch[1].tolist() == [0, 1]
    with pytest.raises(DataError, match="give its Dataset instead"):
        chosen_from(torch.utils.data.DataLoader(pool), torch.tensor([0]))


class Mixing(nn.Module):
    """A layer without params; `how` says what of a batch goes into the outputs of others."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.seen, self.calls = how, torch.zeros(()), 0
        self.list: list[torch.Tensor] = []
        if how == "params":
            self.weight = nn.Parameter(torch.zeros(3))
        if how in ("buffer", "late buffer", "hidden buffer"):
            self.register_buffer("mean", torch.zeros(3), persistent=how != "hidden buffer")
        if how == "frozen":
            self.kept = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix the examples of a batch."""
        self.calls += 1
        how, mean = self.how, x.mean(0)
        if hasattr(self, "mean") and (how != "late buffer" or self.calls > 200):
            self.mean = 0.9 * self.mean + 0.1 * mean.detach()
        elif how == "frozen":
            self.kept.data += mean.detach()
        elif how == "mean":
            return x - mean
        elif how == "detached":
            return x - mean.detach()
        elif how == "late mean":
            return x - mean if self.calls > 200 else x
        elif how == "late memory":
            seen, self.seen = self.seen, mean.detach()
            return x + seen if self.calls > 200 else x
        elif how == "list":
            self.list.append(mean.detach())
            return x + sum(self.list[-3:]) if self.calls > 200 else x
        elif how == "params":
            if torch.is_grad_enabled():
                self.weight.data += mean.detach()
        elif how == "neighbour":
            return x + x.roll(1, 0).clamp(min=10.0)
        elif how == "count":
            return x / len(x)
        elif how == "memory":
            seen, self.seen = self.seen, mean.detach()
            return x + seen
        elif how == "new buffer":
            self.register_buffer("other", mean.detach())
        return x


MIXES = ["buffer", "late buffer", "hidden buffer", "frozen", "mean", "detached", "neighbour"]
MIXES += ["count", "memory", "new buffer", "late mean", "late memory", "list", "params"]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("how", MIXES)
def test_a_model_in_which_records_meet_is_refused(how: str, dropout: float) -> None:
    """Whether by the batch, by what a module keeps, or in what leaves the client beside params."""
    terms = ExampleTerms(clip_norm=0.5, noise_multiplier=1e3, rate=0.01)

    def build() -> nn.Module:
        return nn.Sequential(Mixing(how), nn.Dropout(dropout), model())

    with pytest.raises(DataError, match="example-level privacy"):
        trained(data_of(40), terms, build, epochs=10)


def _batch_mean(losses: torch.Tensor) -> torch.Tensor:
    return losses - losses.mean()


@pytest.mark.parametrize(
    "mix",
    [
        _batch_mean,
        lambda losses: losses - losses.mean().detach(),
        lambda losses: losses / len(losses),
        lambda losses: losses.sort().values,
        lambda losses: torch.where(losses == losses.max(), 0.0, losses),
    ],
    ids=["mean", "detached", "count", "order", "largest"],
)
def test_a_loss_that_looks_across_its_batch_is_refused(mix: Any) -> None:
    """An example that adds a term to the losses of others is not bounded by its own clip."""
    loss = lambda o, t: mix(nn.functional.cross_entropy(o, t, reduction="none"))
    with pytest.raises(DataError, match="no example may have a part in the loss of another"):
        trained(data_of(), task=replace(TASK, loss=loss))


def test_a_loss_that_looks_across_its_batch_later_is_refused() -> None:
    """What begins after a while, and stays, is found before anything leaves."""
    calls = 0

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return losses - losses.mean() if calls > 200 else losses

    terms = ExampleTerms(clip_norm=0.5, noise_multiplier=1e3, rate=0.01)
    with pytest.raises(DataError, match="example-level privacy"):
        trained(data_of(40), terms, task=replace(TASK, loss=loss), epochs=10)


def test_params_that_the_model_changes_itself_are_refused() -> None:
    """An embedding that shortens the rows that it looks up tells which those are."""

    def reads() -> nn.Module:
        embedding = nn.Embedding(7, 3, max_norm=5.0)
        return nn.Sequential(embedding, nn.Flatten(), nn.Linear(12, 2))

    words = torch.arange(80).view(20, 4) % 7, torch.arange(20) % 2
    terms = ExampleTerms(clip_norm=1.0, noise_multiplier=50.0, rate=0.2)
    with pytest.raises(DataError, match="example-level privacy"):
        trained(words, terms, reads, epochs=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_no_example_moves_a_sum_by_more_than_the_clip(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many others there are, and however few bits the params have."""
    from meadow.training.loop import dp_sgd

    totals: list[torch.Tensor] = []

    def seeing(total: torch.Tensor, *_: Any) -> torch.Tensor:
        totals.append(total.double().clone())
        return torch.zeros_like(total)

    monkeypatch.setattr(dp_sgd, "step_noise", seeing)
    loss = lambda o, t: (o * t[:, None]).sum(1)
    moved = []
    for clip in (0.1, 0.23, 0.37, 0.71, 0.977):
        totals.clear()
        for last in (1.0, math.nan):
            inputs = torch.tensor([[1.0, 0.5]]).repeat(65, 1)
            inputs[-1] *= last
            data = inputs.to(dtype), torch.full((65,), 3.1).to(dtype)
            trained(
                data,
                replace(EVERY, clip_norm=clip),
                lambda: nn.Linear(2, 1, bias=False).to(dtype),
                replace(TASK, loss=loss),
            )
        moved.append(float((totals[0] - totals[1]).norm()) / clip)
    assert min(moved) > 0.9 and max(moved) <= 1 + 1e-12, moved


def test_layers_that_take_no_batch_first_are_refused() -> None:
    """What Opacus would take for the gradients of examples there are those of something else."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.inner(x.view(-1, 1, 3).transpose(0, 1))
            return made[0]

    with pytest.raises(DataError, match="the batch as the first dimension"):
        trained(data_of(8), build=Turned)


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_what_keeps_records_apart_is_trained(count: int) -> None:
    """Whatever the number of examples, with dropout, group norm, convolutions and embeddings."""

    def build() -> nn.Module:
        made = [nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 4, 2), nn.GroupNorm(2, 4), nn.Flatten()]
        return nn.Sequential(*made, nn.Dropout(0.5), nn.Linear(8, 2))

    before, after = trained(data_of(count), build=build)
    assert change(before, after).isfinite().all()
    words = torch.arange(count * 4).view(count, 4) % 7, torch.arange(count) % 2

    def reads() -> nn.Module:
        return nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(12, 2))

    trained(words, build=reads)


@pytest.mark.parametrize(
    ("build", "data", "says"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), data_of(), "group or layer"),
        (model, (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)), "must not be empty"),
    ],
)
def test_what_is_refused(build: Any, data: Any, says: str) -> None:
    """Models that mix the examples of a batch, and no data."""
    with pytest.raises(DataError, match=says):
        trained(data, build=build)


@pytest.mark.parametrize("report", [False, True])
def test_nothing_but_the_number_of_records_is_told(kit: Any, report: bool) -> None:
    """Not what a round took of the device either, though the owner sends that elsewhere."""
    task = kit.task(model=lambda: nn.Linear(4, 2))
    app = client_app(task, training=LocalTraining(task, "cpu", report=report))
    terms = ExampleTerms(clip_norm=1.0, noise_multiplier=1.0, rate=0.5)
    asked = kit.message(1, "train", kit.params(task), {**terms.record(), "epochs": 1})
    metrics = app(asked, kit.context()).content.metric_records["metrics"]
    assert dict(metrics) == {"num-examples": 23}
