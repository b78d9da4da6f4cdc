"""Params of few bits: no rounding lets a client move a sum by more than the clip."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from meadow.flower.messages import MemoryTensor, identify_process, params_to_arrays
from meadow.privacy.dp.mechanisms.clipping import Clipping, ClippingKind
from meadow.privacy.dp.mechanisms.local import _bounded
from meadow.privacy.dp.mechanisms.mechanism import PrivateMean
from meadow.randomness.entropy import system_entropy
from meadow.simulations.executors.processes.partial import GroupSum, Total, clipping_by_server
from meadow.strategies.algorithms.algorithm import Update
from meadow.strategies.rounds.checks import ReplyError, forms_of, read_reply

identify_process(run_id=1, node_id=0)

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.complex64]


def client_of(dtype: type, seed: int) -> tuple[dict[str, np.ndarray], dict[str, MemoryTensor]]:
    """Return params, and what a client makes of them: each value moves by a step of its dtype, or
    by half of one, so that rounding doubles what clipping leaves."""
    random = np.random.default_rng(seed)
    before = {name: random.uniform(0.5, 2.0, 300).astype(dtype) for name in "ab"}
    step = 0.26 if dtype is ml_dtypes.float8_e4m3fn else float(2.0**-7)
    if dtype in (np.float32, np.complex64):
        step = 2.0**-22
    after = {name: (each.astype(np.float64) + step).astype(dtype) for name, each in before.items()}
    return before, {name: MemoryTensor(each) for name, each in after.items()}


def norm_of(changes: list[np.ndarray]) -> float:
    """Return the L2 norm of several rows together."""
    return float(np.sqrt(sum(np.square(np.abs(each)).sum() for each in changes)))


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["fixed", "per_layer"])
@pytest.mark.parametrize("share", [0.3, 0.51, 0.75, 0.99])
def test_the_sum_moves_by_the_clip_at_most(dtype: type, kind: ClippingKind, share: float) -> None:
    """On the server, in what it adds up; and on a client, in what it adds noise to."""
    before, after = client_of(dtype, seed=1)
    wide = {name: each.astype(np.complex128) for name, each in before.items()}
    whole = norm_of([after[name].numpy().astype(np.complex128) - wide[name] for name in before])
    clip = whole * share
    clipping = Clipping(kind=kind, clip_norm=clip)
    mean = PrivateMean(cohort=1.0, clipping=clipping, noise_multiplier=1.0, entropy=system_entropy)
    accumulator = mean.fold(mean.zero(before), [Update(client=1, params=after, weight=1.0)])
    (update,) = accumulator.deltas.waiting
    added = [update.params[name].numpy().astype(np.complex128) - wide[name] for name in before]
    assert 0.9 * clip < norm_of(added) <= clip
    noised = _bounded(before, after, clipping, laplace=False)
    assert 0.9 * clip < norm_of(list(noised.values())) <= clip
    one = sum(
        float(np.abs(each).sum())
        for each in _bounded(before, after, clipping, laplace=True).values()
    )
    assert one <= clip * (1 + 1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_sums_of_groups_move_by_the_clip_at_most(dtype: type) -> None:
    """In a simulation whose workers add up: what is handed on to the noise is not rounded yet."""
    before, after = client_of(dtype, seed=2)
    wide = {name: each.astype(np.float64) for name, each in before.items()}
    clip = 0.51 * norm_of([after[name].numpy().astype(np.float64) - wide[name] for name in before])
    others, mean = 3, {}
    for clients in (range(1, others + 1), range(1, others + 2)):
        total = Total(before, exact=True)
        for group, client in enumerate(clients):
            one = GroupSum(before, Clipping(clip_norm=clip))
            changed = after if client > others else {n: MemoryTensor(v) for n, v in before.items()}
            assert one.take(_reply(client, changed), combined=False) is None
            total.add(group, one.finish())
        finished = total.finish()
        assert finished is not None
        asked = Message(RecordDict(), 1, "train", group_id="1")
        read = read_reply(
            Message(finished[1], reply_to=asked), forms=forms_of(before), combined=True
        )
        assert all(each.dtype == np.float64 for each in read.tensors.values())
        mean[len(clients)] = {n: each.numpy() for n, each in read.tensors.items()}
    sums = [
        {name: (values - wide[name]) * count for name, values in each.items()}
        for count, each in mean.items()
    ]
    moved = norm_of([sums[1][name] - sums[0][name] for name in before])
    assert 0.9 * clip < moved <= clip * (1 + 1e-9)


def _reply(client: int, tensors: dict[str, MemoryTensor]) -> Message:
    message = Message(RecordDict(), client, "train", group_id="1")
    content = {"arrays": params_to_arrays(tensors), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


def test_only_what_stands_for_several_may_be_wide() -> None:
    """A client's own reply has the dtypes that it was sent."""
    params = {"w": np.zeros(3, np.float32)}
    reply = _reply(1, {"w": MemoryTensor(np.zeros(3))})
    for combined in (False, True):
        with pytest.raises(ReplyError, match="must be float32"):
            read_reply(reply, forms=forms_of(params), combined=combined)


def test_noise_of_clients_is_not_clipped_off() -> None:
    """Sums are clipped where the server adds the noise, and nowhere else."""
    for source, clipped in (("server", True), ("local_gaussian", False)):
        told = {**Clipping(clip_norm=2.0).record(), "dp-noise-multiplier": 1.0, "dp-noise": source}
        found = clipping_by_server(RecordDict({"config": ConfigRecord(told)}))
        assert (found == Clipping(clip_norm=2.0)) is clipped
    assert clipping_by_server(RecordDict()) is None
