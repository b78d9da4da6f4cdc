"""How this process trains a round: alone or with other ranks, with saves in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch.utils.data import DataLoader

from ...config.sections.device import DeviceConfig
from ...errors import DataError
from ...privacy.dp.example_level import ExampleTerms
from ...privacy.dp.mechanisms.noise import SEED_BYTES, generator_from
from ...randomness.entropy import system_entropy
from ...task import Site, Task
from ..algorithms.corrections import Corrections
from ..device_meter import DeviceMeter
from ..device_use import DeviceUse, choose_device
from ..evaluation import evaluate
from ..loop.dp_sgd import train_dp_sgd
from ..loop.trainer import Draws, train
from ..micro_batch import MicroBatch
from ..mid_epoch import MidEpoch, forget_others, saves_folder
from ..module_params import build_module
from ..parallel.data_parallel import DataParallel
from ..parallel.divided import Divided, send
from ..parallel.evaluation import evaluate_together
from ..parallel.group import RankGroup
from ..parallel.hosts import Hosts
from ..parallel.instructions import RoundInstruction
from ..parallel.parallelism import Alone, Parallelism
from ..parallel.plan import ParallelPlan
from ..settings import TrainingSettings
from ..step_timer import StepTimer, Unwatched

if TYPE_CHECKING:
    from ...task import Data

__all__ = ["LocalTraining", "Round"]

Trained = tuple[torch.nn.Module, int, dict[str, float]]
"""A module, its number of examples, and the means of loss and metrics."""


@dataclass(slots=True, kw_only=True)
class Round:
    """One train instruction.

    Attributes:
        load: returns the module with the params that the server sent, for a generation of ranks.
        key: what tells this instruction from others, and is the same when it is repeated.
        begin: returns what an algorithm does in the steps of a module that has its params; such a
            round is not saved.
        dp_sgd: the terms of example-level privacy, if any; such a round is not saved, and has no means.
        draws: the client's, if they are known already.
    """

    site: Site
    data: Data
    settings: TrainingSettings
    client: int
    load: Callable[[int], torch.nn.Module]
    key: tuple[object, ...]
    begin: Callable[[torch.nn.Module], Corrections] | None = None
    dp_sgd: ExampleTerms | None = None
    draws: Draws | None = None


class LocalTraining:
    """Trains rounds by the owner's [device]; processes and bounds stay for the next round.

    Attributes:
        device: where this process computes.
        module_device: where its whole module is: the CPU, if ranks hold parts of it.
        use: how a module and its batches use the device.
        timer: measures the phases of this process's training.
        text: the devices for people.
    """

    def __init__(
        self,
        task: Task,
        device: str,
        *,
        plan: ParallelPlan | None = None,
        group: RankGroup | None = None,
        use: DeviceUse | None = None,
        config: DeviceConfig | None = None,
        saves: Path | None = None,
        report: bool = False,
    ) -> None:
        self._task = task
        self._plan = plan or ParallelPlan.single(device)
        self._group = group
        self._config = config or DeviceConfig()
        self._saves = saves
        self._micro_batch = MicroBatch()
        self.use = use or DeviceUse()
        self.timer: StepTimer = Unwatched()
        self._meter = DeviceMeter(device) if report else None
        self._own_parallelism: Parallelism = Alone()
        if self._plan.kind == "data_parallel":
            self._own_parallelism = DataParallel(self._plan.devices)
        self.device = device
        self.module_device = "cpu" if self._plan.sharded else device
        reason = f" ({self._plan.reason})" if self._plan.reason else ""
        shown = self._plan if group is None else group.plan
        self.text = device if self._plan.kind == "none" else shown.text + reason

    @classmethod
    def owned(
        cls,
        task: Task,
        config: DeviceConfig,
        *,
        app_dir: str,
        sha256: str,
        client_dir: Path,
        report: bool = False,
        hosts: Hosts | None = None,
    ) -> LocalTraining:
        """Return what an owner's [device] describes, its ranks started.

        With `report` the means of a round also tell what it took of the device. `hosts` are the
        other machines that train with this one.

        Raises:
            DataError: a device is not there, or the ranks do not start.
        """
        auto = config.parallel == "auto"
        size = sum(p.nbytes for p in build_module(task, 0).parameters()) if auto else 0
        plan = ParallelPlan.of(config, model_bytes=size)
        one = config.parallel == "none" and config.gpus is None
        device = choose_device(config.device if one else plan.devices[0])
        use, group = DeviceUse.of(config, kind=plan.kind, device=device), None
        if plan.kind not in ("none", "data_parallel"):
            group = RankGroup(
                plan,
                use,
                app_dir=app_dir,
                sha256=sha256,
                folder=client_dir / "ranks",
                stages=task.stages,
                hosts=hosts,
                copied=config.parallel == "hybrid",
            )
            group.warm()
        saves = client_dir / "unfinished"
        return cls(
            task, device, plan=plan, group=group, use=use, config=config, saves=saves, report=report
        )

    def train(self, work: Round) -> Trained:
        """Return the trained module, and what `trainer.train` returns; the means also have what
        the round took of the device, if that is to be reported.

        Guarantees: an instruction that was begun before, and is repeated, goes on from where it
            was last saved, and gives the same params.
        """
        if self._meter is None:
            return self._train(work)
        with self._meter.measuring():
            module, examples, means = self._train(work)
        return module, examples, means | self._meter.metrics(examples * work.settings.epochs)

    def _train(self, work: Round) -> Trained:
        if work.dp_sgd is not None:
            self.require_whole("DP-SGD", "clips every example's gradient")
            if self._across:
                raise DataError(
                    "DP-SGD stays on one machine, as its sampling bits are secret, and device.hosts = "
                    f"{self._config.hosts}; remove device.hosts"
                )
        if work.settings.is_torchs:
            self.require_whole(f"training.optimizer {work.settings.optimizer!r}", "makes steps")
        settings = self._as_owned(work.settings)
        saves = self._saves_of(work, settings)

        def instruction_of() -> RoundInstruction:
            return RoundInstruction(
                site=work.site,
                settings=settings,
                client=work.client,
                examples_max=self._micro_batch.examples_max,
                saves=saves,
                resume_at=-1 if saves is None else saves.latest(),
                dp_sgd=work.dp_sgd,
                sampling="" if work.dp_sgd is None else system_entropy(SEED_BYTES).hex(),
            )

        def go(instruction: RoundInstruction, parallelism: Parallelism) -> Trained:
            module = work.load(self.generation)
            if instruction.dp_sgd is not None:
                examples = train_dp_sgd(
                    self._task,
                    module,
                    work.data,
                    instruction.settings,
                    instruction.dp_sgd,
                    client=instruction.client,
                    device=self.device,
                    sampling=generator_from(bytes.fromhex(instruction.sampling)),
                    parallelism=parallelism if isinstance(parallelism, Divided) else None,
                )
                return module, examples, {}
            session = None if work.begin is None else work.begin(module)
            if session is not None and parallelism.ranks > 1:
                send(session.tensors())
            examples, means = train(
                self._task,
                module,
                work.data,
                instruction.settings,
                client=instruction.client,
                device=self.device,
                session=session,
                parallelism=parallelism,
                use=self.use,
                timer=self.timer,
                micro_batch=self._micro_batch,
                saves=instruction.saves,
                resume_at=instruction.resume_at,
                draws=work.draws,
            )
            return module, examples, means

        if self._group is None:
            return go(instruction_of(), self._own_parallelism)
        group = self._group
        return group.run(
            instruction_of,
            go,
            lambda: self._micro_batch.halve(-(-settings.batch_size // group.plan.ranks)),
        )

    def evaluate(self, work: Round, part: Literal["train", "test"]) -> tuple[int, dict[str, float]]:
        """Return the number of samples and the metrics of a round's data, before it is trained.

        `part` says which of the site's data they are. Ranks that have the whole model share them;
        else this process evaluates alone.
        """
        size = work.settings.batch_size

        def go(
            instruction: RoundInstruction, parallelism: Parallelism
        ) -> tuple[int, dict[str, float]]:
            module, device = work.load(self.generation), self.module_device
            if parallelism.ranks == 1:
                return evaluate(self._task, module, work.data, batch_size=size, device=device)
            return evaluate_together(
                self._task,
                module,
                work.data,
                batch_size=size,
                device=device,
                parallelism=parallelism,
            )

        instruction_of = RoundInstruction(
            site=work.site,
            settings=work.settings,
            client=work.client,
            examples_max=None,
            saves=None,
            resume_at=-1,
            evaluate=part,
        )
        shared = self._plan.kind == "ddp" and not isinstance(work.data, DataLoader)
        if self._group is None or not shared:
            return go(instruction_of, Alone())
        return self._group.run(lambda: instruction_of, go, lambda: None)

    def require_whole(self, who: str, does: str) -> None:
        """Check that this process has the whole params, which `who` needs for what it `does`.

        Raises:
            DataError: each rank has a part of them only.
        """
        if self._plan.kind not in ("none", "data_parallel", "ddp"):
            raise DataError(
                f"{who} {does} of the whole model, and under parallel = {self._config.parallel!r} "
                'each process has a part of it; set parallel = "ddp" or "none" in [device]'
            )

    def require_one_device(self, who: str) -> None:
        """Check that one device computes everything, which `who` needs.

        Raises:
            DataError: there are several.
        """
        if self._plan.kind != "none":
            raise DataError(
                f"{who} needs one device, and parallel is {self._config.parallel!r}; set parallel = "
                '"none" and one GPU in [device]'
            )

    def alone(self, settings: TrainingSettings) -> TrainingSettings:
        """Return the settings, for work that one process has to do alone.

        Raises:
            DataError: there are several ranks.
        """
        if self._group is not None:
            raise DataError(
                f"params of a client's own (algorithm {settings.algorithm!r}) need the whole model "
                f"in one process, and parallel is {self._config.parallel!r}; set parallel = "
                '"none" in [device]'
            )
        return self._as_owned(settings)

    def _as_owned(self, settings: TrainingSettings) -> TrainingSettings:
        if self._config.precision == "run":
            return settings
        return replace(settings, precision=self._config.precision)

    @property
    def _across(self) -> bool:
        """Whether ranks may be on several machines."""
        return self._group is not None and bool(self._group.plan.hosts)

    @property
    def generation(self) -> int:
        """How often ranks were started; a module is spread over those of one start."""
        return 0 if self._group is None else self._group.generation

    def close(self) -> None:
        """End the other ranks."""
        if self._group is not None:
            self._group.close()

    def _saves_of(self, work: Round, settings: TrainingSettings) -> MidEpoch | None:
        unsaved = work.begin is not None or work.dp_sgd is not None or settings.is_torchs
        unsaved = unsaved or self._across  # a part of a save would be on a machine that may be lost
        if self._saves is None or not self._config.save_steps or unsaved:
            return None
        plan = self._plan
        layout = plan.kind, plan.ranks, plan.copies, self.device
        folder = saves_folder(self._saves, work.key, settings, work.client, *layout)
        forget_others(folder)
        return MidEpoch(folder=folder, every_steps=self._config.save_steps, ranks=plan.ranks)
