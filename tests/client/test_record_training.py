"""DP-SGD on a client: what a record can change, the noise, the coins, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from meadow.batches import chosen_from
from meadow.client.record_training import draw_records, step_noise, train_records
from meadow.client.training_settings import TrainingSettings
from meadow.errors import DataError
from meadow.privacy.dp.noise import generator_of
from meadow.privacy.dp.records import RecordTerms
from meadow.privacy.entropy import system_entropy
from meadow.task import Task

pytest.importorskip("opacus")
EVERY = RecordTerms(clip=0.5, noise_multiplier=1e-9, rate=1.0)
"""All records in every step, and noise too small to be seen: then training is no chance."""


def model() -> nn.Module:
    """Return a module whose layers Opacus treats each in its own way."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2))


TASK = Task(
    model=model,
    loss=lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"),
    client_data=lambda site: None,  # type: ignore[arg-type, return-value]
)


def data_of(count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Return records of very different lengths."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 3, generator=generator) * torch.arange(1, count + 1)[:, None]
    return inputs, torch.arange(count) % 2


def trained(
    data: Any, terms: RecordTerms = EVERY, build: Any = model, **settings: Any
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the params before and after a round."""
    torch.manual_seed(0)
    module = build()
    before = {name: each.detach().clone() for name, each in module.named_parameters()}
    said = TrainingSettings(learning_rate=1.0, **settings)
    assert train_records(TASK, module, data, said, terms, client=1, device="cpu") == len(data[1])
    assert not any(hasattr(each, "grad_sample") for each in module.parameters())
    return before, {name: each.detach() for name, each in module.named_parameters()}


def change(before: Any, after: Any) -> torch.Tensor:
    """Return all changes in a row."""
    return torch.cat([(after[name] - before[name]).flatten() for name in before])


def test_a_step_is_the_mean_of_clipped_gradients() -> None:
    """Record by record, as computed one at a time."""
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
    """By brute force: every record in turn is made nothing of, by giving it no finite gradient."""
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

    terms = RecordTerms(clip=0.5, noise_multiplier=3.0, rate=0.1)
    noise = step_noise(torch.zeros(200, 200), terms, generator_of(system_entropy)).flatten().numpy()
    assert fits(noise) and not fits(noise * 1.05) and not fits(noise * 0.95)


def test_the_divisor_is_the_mean_number_of_drawn_records() -> None:
    """Not how many were drawn: a step in which hardly anybody is drawn is noise over that mean."""
    terms = RecordTerms(clip=1e-6, noise_multiplier=2e6, rate=0.75)
    moved = [change(*trained(data_of(2), terms)) for _ in range(40)]
    assert terms.steps(1) == 1
    stddev = float(torch.cat(moved).std())
    assert stddev == pytest.approx(2.0 / (0.75 * 2), rel=0.12)


def test_coins_are_independent_and_of_the_planned_rate() -> None:
    """Batches have a binomial size, and no record prevails; fixed sizes would fail."""
    coins = generator_of(system_entropy)
    drawn = [draw_records(400, 0.1, coins) for _ in range(500)]
    sizes = np.array([len(each) for each in drawn])
    assert abs(sizes.mean() - 40) < 5 * 6 / math.sqrt(500)
    assert 0.7 < sizes.var() / 36 < 1.4
    often = np.bincount(np.concatenate(drawn), minlength=400)
    assert abs(often / 500 - 0.1).max() < 6 * 0.3 / math.sqrt(500)


def test_noise_and_coins_are_not_the_seeds() -> None:
    """The same seed twice gives other params."""
    terms = RecordTerms(clip=0.5, noise_multiplier=1.0, rate=0.5)
    one, other = (change(*trained(data_of(), terms, seed=7)) for _ in range(2))
    assert not torch.equal(one, other)


def test_a_round_has_as_many_steps_as_are_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where batches are empty: a step without records is one of noise."""
    from meadow.client import record_training

    steps: list[int] = []
    descend = record_training.descend
    monkeypatch.setattr(
        record_training,
        "descend",
        lambda *given, step: (steps.append(step), descend(*given, step=step))[1],
    )
    terms = RecordTerms(clip=0.5, noise_multiplier=1.0, rate=0.02)
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
    from meadow.client import record_training

    whole = change(*trained(data_of()))
    monkeypatch.setattr(record_training, "GRADIENT_BYTES", 250)
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
