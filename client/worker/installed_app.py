"""Executes an app in the training process: takes messages, returns messages and client state."""

from __future__ import annotations

import uuid
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flwr.app import Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp

from ...apps.folder import App
from ...compression.client import compressed_app, is_compressed
from ...config.app_options import OPTIONS_KEY, options_from_text, options_to_text
from ...config.client_config import load_client_config
from ...errors import AppError
from ...flower.messages import identify_process, rebuild_message, set_message_id
from ...privacy.secagg.client.app import secure_app
from ...privacy.secagg.terms.terms import is_secure
from ...transport.blobs import blob_path, blobs_of, require_intact
from ...transport.codec import decode, encode
from ...transport.content import pack_content, unpack_content
from ...transport.entries import unpack_entries
from ...transport.file_pool import FilePool
from ...transport.fleet_pb2 import (
    Envelope,
    Inspection,
    Instruction,
    TrainingDone,
    TrainingStart,
    TrainingWork,
)
from ...transport.relaying import LEAF_BITS
from ...transport.run_sites import index_of, pack_sites
from ...transport.writer import BlobWriter
from ..owner.secure_owner import owned_identity

if TYPE_CHECKING:
    from ...training.parallel.hosts import Hosts

__all__ = ["OF_ONE_CLIENT", "InstalledApp", "setup_of"]

OF_ONE_CLIENT = ("id", "envelope", "cohort_clients")
"""The fields of an instruction that may differ within a secure sum. The app does not see its id, nor
the number of clients of a step, which only the policy uses: the cohort of a sum is its roster. The
message in its envelope is bound separately."""


class InstalledApp:
    """One app, loaded, with the owner's settings for it."""

    def __init__(self, app: App, client_app: ClientApp, start: TrainingStart, device: str) -> None:
        self._app = app
        self._setup = b""
        self._client_app = client_app
        self._secure_app = secure_app(
            client_app,
            identify=owned_identity(Path(start.client_dir), node=start.node_id),
            setup=lambda _: self._setup,
        )
        self._node_id = start.node_id
        self._file_pool = FilePool(Path(start.client_dir) / "spare")
        self._node_config = cast(dict[str, Any], unpack_entries(start.node_config))
        self.device = device

    @classmethod
    def load(cls, start: TrainingStart) -> InstalledApp:
        """Load the app's code, if its content is what the agent has allowed.

        Raises:
            AppError: the content was changed, or the code does not load.
        """
        app = App.load(start.app_dir, environ={})
        if app.sha256 != start.sha256:
            raise AppError(f"{start.app_dir} was changed since the agent checked it")
        identify_process(run_id=0, node_id=start.node_id, quiet=app.flower is None)
        if app.flower is not None:
            client_app = app.load_object(app.flower.client_app)
            if not isinstance(client_app, ClientApp):
                raise AppError(
                    f"{app.flower.client_app!r} is a {type(client_app).__name__}, not a ClientApp"
                )
            return cls(app, client_app, start, "as the app chooses")
        made = _TaskApp(app, start)
        return cls(app, made, start, made.device)

    def execute(self, work: TrainingWork) -> TrainingDone:
        """Execute one instruction.

        Guarantees: the files of the reply and of the state are durable on return.
        Raises:
            Exception: any exception of the app.
        """
        instruction = work.instruction
        blobs, states = Path(work.blob_dir), Path(work.state_dir)
        message = decode(instruction.envelope, lambda blob: blob_path(blobs, blob.id))
        state = _unpacked(work.state, states)
        context = self._context(instruction, state)
        self._setup = setup_of(instruction)
        reply = self._app_for(message)(message, context)
        if not isinstance(reply, Message):
            raise AppError(f"the app answered with a {type(reply).__name__}, not a Message")
        set_message_id(reply, uuid.uuid4().hex)
        return TrainingDone(
            instruction_id=instruction.id,
            envelope=encode(reply, BlobWriter(Path(work.reply_dir), file_pool=self._file_pool)),
            state=_packed(context.state, states),
        )

    def _app_for(self, message: Message) -> ClientApp:
        """Return the app, wrapped where the message needs it. Whether a plain instruction is allowed
        at all, the agent has checked by its owner's policy."""
        if is_secure(message.metadata.message_type):
            return self._secure_app
        return compressed_app(self._client_app) if is_compressed(message) else self._client_app

    def explain(self, error: BaseException) -> str:
        """Return one line on the exception that the app raised, and its place in the code."""
        return self._app.explain(error)

    def inspect(self) -> Inspection:
        """Load the owner's data and count it, if the app defines how.

        Raises:
            Exception: any exception of the app.
        """
        if self._app.flower is not None:
            return Inspection(counted=False)
        metadata = Metadata(0, "inspect", 0, self._node_id, "", "", 0.0, 600.0, "query")
        number = self._node_id % (
            1 << LEAF_BITS
        )  # it is in no run: as if in one with those before it
        sites = pack_sites([*range(1, number), self._node_id])
        alone = Instruction(sites=sites.count, site_nodes=sites.bitmap)
        context = self._context(alone, RecordDict())
        reply = self._client_app(rebuild_message(metadata, RecordDict()), context)
        counts = reply.content.metric_records["metrics"]
        return Inspection(
            train_samples=int(cast(int, counts["num-examples"])),
            test_samples=int(cast(int, counts["num-test-examples"])),
            counted=True,
        )

    def _context(self, instruction: Instruction, state: RecordDict) -> Context:
        quiet = self._app.flower is None
        identify_process(run_id=instruction.run_id, node_id=self._node_id, quiet=quiet)
        node_config = {"site-count": instruction.sites, **self._node_config}
        index = index_of(self._node_id, instruction.site_nodes, instruction.joined_nodes)
        if index is not None:
            node_config.setdefault("site-index", index)
            if any(node >> LEAF_BITS for node in instruction.joined_nodes):
                node_config["site-stream"] = index + 1
        for ours, flowers in (("site-index", "partition-id"), ("site-count", "num-partitions")):
            if ours in node_config:
                node_config.setdefault(flowers, node_config[ours])
        return Context(
            run_id=instruction.run_id,
            node_id=self._node_id,
            node_config=node_config,
            state=state,
            run_config=cast(dict[str, Any], unpack_entries(instruction.run_config)),
        )


class _TaskApp(ClientApp):
    """A task's app, made anew for a run with other free keys under [app] than the one before: the
    code is what the owner has installed, and its keyword arguments come from the run."""

    def __init__(self, app: App, start: TrainingStart) -> None:
        super().__init__()
        assert app.config is not None
        self._app, self._start = app, start
        self._hosts: Hosts | None = None
        self._own = self._text = options_to_text(app.config.app.options, str(app.config.source))
        self._made, self.device = self._make(self._text)

    def __call__(self, message: Message, context: Context) -> Message:
        text = str(context.run_config.get(OPTIONS_KEY, self._own))
        if text != self._text:
            self._made, self.device = self._make(text)
            self._text = text
        return self._made(message, context)

    def _make(self, text: str) -> tuple[ClientApp, str]:
        from ...training.local.app import client_app
        from ...training.local.training import (
            LocalTraining,  # imports torch, which a plain Flower app may not need
        )

        task = self._app.load_task(options_from_text(text))
        config = load_client_config(self._start.client_dir)
        if text != self._own and (config.device.parallel != "none" or config.device.gpus):
            raise AppError(
                f"{self._app.name}: the run sets free keys under [app], which training processes "
                "on several GPUs do not receive; write them into the app's meadow.toml"
            )
        wanted = config.device.hosts is not None and not self._start.alone
        if wanted and self._hosts is None:
            from ..hosts.link import Link

            self._hosts = Link(Path(self._start.client_dir), config.device)
        training = LocalTraining.owned(
            task,
            config.device,
            hosts=self._hosts,
            report=config.policy.report_device,
            app_dir=self._start.app_dir,
            sha256=self._start.sha256,
            client_dir=Path(self._start.client_dir),
        )
        return client_app(task, copies=False, training=training), training.text


def setup_of(instruction: Instruction) -> bytes:
    """Return the hash of an instruction without its message, which must be the same for all clients
    of a secure sum.

    Guarantees: covers every field but those of `OF_ONE_CLIENT`, in later versions too.
    """
    common = Instruction()
    common.CopyFrom(instruction)
    for name in OF_ONE_CLIENT:
        common.ClearField(name)
    return sha256(
        b"meadow secure setup 2\0" + common.SerializeToString(deterministic=True)
    ).digest()


def _unpacked(packed: bytes, folder: Path) -> RecordDict:
    """Return an app's client state.

    Raises:
        DamageError: its files were changed on the disk.
    """
    if not packed:
        return RecordDict()
    for blob in blobs_of(Envelope.FromString(packed)):
        require_intact(blob_path(folder, blob.id), blob)
    return unpack_content(packed, folder)


def _packed(state: RecordDict, folder: Path) -> bytes:
    return pack_content(state, BlobWriter(folder)) if state else b""
