"""The strict accelerator is strict, and what Meadow asks of a device works on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from meadow.client.tools.batch_probe import room_bytes
from meadow.config.client_config import make_client_config
from meadow.config.sections.device import DeviceConfig
from meadow.errors import DataError
from meadow.machine.accelerators import accelerators, free_bytes, is_accelerator, widest_float
from meadow.randomness.seeded import generator_states, seeded, set_generator_states
from meadow.training.device_meter import DeviceMeter, PeakMemory
from meadow.training.device_use import DeviceUse, choose_device
from meadow.training.parallel.plan import ParallelPlan
from meadow.training.step_timer import StopWatch

FIRST, SECOND = "strict:0", "strict:1"


@pytest.mark.parametrize(
    "mix",
    [
        lambda: torch.ones(2, device=FIRST) + torch.ones(2),
        lambda: torch.ones(2, device=FIRST) + torch.ones(2, device=SECOND),
        lambda: torch.nn.functional.linear(torch.ones(2, 2, device=FIRST), torch.ones(2, 2)),
        lambda: torch.cat([torch.ones(2, device=FIRST), torch.ones(2, device=SECOND)]),
    ],
)
def test_devices_do_not_mix(mix: Callable[[], torch.Tensor]) -> None:
    """As CUDA, it refuses an operation on tensors of two devices."""
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        mix()


def test_auto_is_the_accelerator() -> None:
    """ "auto" picks what is there, and devices are named as torch names them."""
    assert accelerators() == (FIRST, SECOND)
    assert choose_device("auto") == FIRST
    assert choose_device("strict") == FIRST
    assert choose_device(SECOND) == SECOND
    with pytest.raises(DataError, match="'strict:7' is not there: torch sees strict:0, strict:1"):
        choose_device("strict:7")
    with pytest.raises(DataError, match="'cuda:0' is not there: torch sees strict:0, strict:1"):
        choose_device("cuda:0")
    make_client_config({"device": {"device": SECOND}})


def test_plans_name_its_devices() -> None:
    """The owner's numbers are those of its devices, and its ranks speak as torch says."""
    plan = ParallelPlan.of(DeviceConfig(gpus="all", parallel="auto"), model_bytes=1000)
    assert (plan.kind, plan.devices, plan.backend) == ("ddp", (FIRST, SECOND), "strictgloo")
    large = ParallelPlan.of(DeviceConfig(gpus="all", parallel="auto"), model_bytes=300 * 10**6)
    assert large.kind == "fsdp" and "of the 1.1 GB free" in large.reason
    assert ParallelPlan.of(DeviceConfig(gpus=1)).devices == (SECOND,)


def test_its_memory_is_measured() -> None:
    """Peaks and free memory are the device's, not the process's."""
    free = free_bytes(SECOND)
    peak = PeakMemory(SECOND)
    held = torch.ones(1 << 20, device=SECOND)
    assert free is not None and free_bytes(SECOND) == free - held.nbytes
    del held
    assert free_bytes(SECOND) == free
    assert 4 << 20 <= peak.bytes() < 8 << 20
    assert room_bytes(SECOND, None) == int(free * 0.8)
    meter = DeviceMeter(SECOND)
    with meter.measuring():
        torch.ones(1 << 20, device=SECOND)
    assert meter.metrics(1)["peak-memory-mb"] == pytest.approx(peak.bytes() / 1e6, rel=0.5)
    assert "utilisation" not in meter.metrics(1)


@pytest.mark.parametrize("device", [FIRST, SECOND])
def test_its_generator_is_seeded_and_left_as_it_was(device: str) -> None:
    """The same seed gives the same numbers, and no device's generator is left changed."""
    before = [torch.get_device_module(each).get_rng_state(each) for each in (FIRST, SECOND)]
    drawn = []
    for _ in range(2):
        with seeded(7, device):
            drawn.append(torch.rand(4, device=device).cpu())
    assert torch.equal(*drawn)
    after = [torch.get_device_module(each).get_rng_state(each) for each in (FIRST, SECOND)]
    assert all(map(torch.equal, before, after))


def test_its_generator_is_saved() -> None:
    """What was saved goes on with the numbers that would have come."""
    states = generator_states(SECOND)
    expected = torch.rand(4, device=SECOND).cpu()
    set_generator_states(states, SECOND)
    assert torch.equal(torch.rand(4, device=SECOND).cpu(), expected)


def test_pinned_batches_arrive() -> None:
    """Batches are copied from pinned memory, and only to an accelerator."""
    use = DeviceUse.of(DeviceConfig(pin_memory=True), kind="none", device=SECOND)
    rows = torch.arange(6.0)
    assert rows.pin_memory().is_pinned() and not rows.is_pinned()
    placed, _ = use.place((rows, rows), torch.device(SECOND))
    assert str(placed.device) == SECOND and torch.equal(placed.cpu(), rows)
    with pytest.raises(DataError, match="pin_memory speeds up copies to an accelerator"):
        DeviceUse.of(DeviceConfig(pin_memory=True), kind="none", device="cpu")


def test_a_stop_watch_waits_for_it() -> None:
    """Phases end when the device has done its work."""
    watch = StopWatch(SECOND, warm_steps=0, steps_max=2)
    with watch.of("optimizer"):
        torch.ones(4, device=SECOND)
    assert watch.steps == 1 and is_accelerator(SECOND)
    assert widest_float("cpu") == torch.float64
