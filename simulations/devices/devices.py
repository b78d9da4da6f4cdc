"""Simulated devices: how fast each client is, when it is there, and whether it answers.

Everything is a function of the seed and the client, and where chance decides of the round too:
nothing is kept, and nothing depends on how many clients there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...config.sections.simulation import DevicesConfig
from ...errors import ConfigError
from ...randomness.seeds import derive, spread
from .device_trace import MARGIN_S, SpeedTable, Trace

__all__ = ["DeviceWork", "Devices"]

Ids = NDArray[np.integer]
Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """What an instruction asks of each device: one number for all, or (clients,) of them.

    `examples` counts an example once for every time that it is gone through.
    """

    bytes_down: float | Numbers
    bytes_up: float | Numbers
    examples: float | Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices of a simulation's clients.

    Shapes: `ids` are node ids, (clients,), in any order; the results are (clients,) too.
    Guarantees: a client's values depend on `seed`, the client and the arguments alone.
    """

    config: DevicesConfig
    seed: int
    trace: Trace | None = None
    known: SpeedTable | None = None

    @classmethod
    def of(cls, config: DevicesConfig, *, seed: int, clients: int, folder: Path) -> Devices:
        """Return the devices that [simulation.devices] describes; `folder` is where its files are.

        Raises:
            ConfigError: a file cannot be used, or two keys say when clients are there.
        """
        if config.trace is not None and config.available_share is not None:
            raise ConfigError(
                "simulation.devices.trace and simulation.devices.available_share both say when "
                "clients are there; remove one of them"
            )
        trace, speeds = config.trace, config.speeds
        return cls(
            config=config,
            seed=seed,
            trace=None if trace is None else Trace.read(folder / trace, clients=clients),
            known=None if speeds is None else SpeedTable.read(folder / speeds, clients=clients),
        )

    def durations_s(self, ids: Ids, work: DeviceWork) -> Numbers:
        """Return how long each client takes from the instruction to the end of its answer."""
        config = self.config
        down = self.speed("download_bytes_per_s", ids, config.bandwidth_spread)
        up = self.speed("upload_bytes_per_s", ids, config.bandwidth_spread)
        examples = self.speed("examples_per_s", ids, config.examples_per_s_spread)
        transfers_s = work.bytes_down / down + work.bytes_up / up
        return np.asarray(config.latency_s + transfers_s + work.examples / examples)

    def speed(self, name: str, ids: Ids, deviation: float) -> Numbers:
        """Return one of the three speeds: what is known, else drawn log-normally.

        The median is what [simulation.devices] says, and the logarithm's standard deviation is
        `deviation`.
        """
        median: float = getattr(self.config, name)
        drawn = median * np.exp(deviation * self._normal(name, ids))
        return drawn if self.known is None else self.known.over(drawn, ids, name)

    def fates(self, ids: Ids, occasion: str) -> tuple[Flags, Flags]:
        """Return who never answers, and who of the others answers with an error."""
        drops = self._uniform(f"dropout/{occasion}", ids) < self.config.dropout
        fails = self._uniform(f"failure/{occasion}", ids) < self.config.failure
        return drops, fails & ~drops

    # ------------------------------------------------------------------ who is there

    def available(self, ids: Ids, now_s: float) -> Flags:
        """Return which clients are there."""
        if self.trace is not None:
            return self.trace.available(ids, now_s)
        if self.config.available_share is None:
            return np.ones(len(ids), bool)
        periods_s, since_s = self._period(ids, now_s)
        return np.asarray(since_s < self.config.available_share * periods_s)

    def next_there_s(self, ids: Ids, now_s: float) -> Numbers:
        """Return when each client is there next: now, later, or never (inf)."""
        if self.trace is not None:
            return self.trace.next_there_s(ids, now_s)
        periods_s, since_s = self._period(ids, now_s)
        wait_s = np.where(self.available(ids, now_s), 0.0, periods_s - since_s + MARGIN_S)
        return now_s + wait_s

    def _period(self, ids: Ids, now_s: float) -> tuple[Numbers, Numbers]:
        """Return the lengths of the clients' periods, and for how long the present ones last.

        A client is there from a period's beginning, for its share of it.
        """
        periods_s = self.config.period_s * (0.5 + self._uniform("period", ids))
        begin_s = self._uniform("phase", ids) * periods_s
        return periods_s, (now_s + begin_s) % periods_s

    # ------------------------------------------------------------------ chance

    def _uniform(self, name: str, ids: Ids) -> Numbers:
        """Return numbers in [0, 1)."""
        words = spread(derive(self.seed, "devices", name), ids)
        return np.asarray((words >> np.uint64(11)) * 2.0**-53)

    def _normal(self, name: str, ids: Ids) -> Numbers:
        """Return standard normal numbers.

        Source: Box, Muller, "A note on the generation of random normal deviates" (1958).
        """
        radius = np.sqrt(-2.0 * np.log1p(-self._uniform(f"{name}/radius", ids)))
        return radius * np.cos(2.0 * np.pi * self._uniform(f"{name}/angle", ids))
