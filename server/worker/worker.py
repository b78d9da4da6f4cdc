"""The run worker: `python -m meadow.server.worker.worker FD`, one process per run.

It executes the run's ServerApp on a `FleetGrid` and writes the run folder. A restarted worker
continues after the last committed round.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from ...apps.folder import App
from ...config.rules.differential_privacy import cohort_of
from ...errors import DamageError, MeadowError
from ...flower.messages import identify_process
from ...machine.process_limits import allow_many_files, keep_freed_memory
from ...randomness.entropy import system_entropy
from ...run.execute import execute, resolved_toml, rounds_of, run_config_of
from ...run.population_ledger import RunShare, open_population
from ...run.run_folder import RunFolder
from ...transport import fleet_pb2 as pb
from ...transport.durable import write_file
from ...transport.entries import pack_entries
from ...transport.pipe import Pipe
from ...transport.tracing import traces_of
from .channel import Channel
from .disk_check import DiskCheck
from .grid import FleetGrid

__all__ = ["main"]

SERVER_NODE_ID = 0
SITE_LOG = "training.log in the site's own folder"
SECRET_FILE = "message-ids.key"
SECRET_BYTES = 32


def main(fd: int) -> int:
    """Run one worker to its end; return the exit code."""
    keep_freed_memory()
    allow_many_files()
    channel = Channel(Pipe.inherited(fd, pb.DaemonMessage))
    start = channel.start()
    form = f"%(asctime)sZ %(levelname)-7s run {start.run_id}: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, datefmt="%Y-%m-%d %H:%M:%S")
    logging.Formatter.converter = time.gmtime
    try:
        app = App.load(Path(start.app_dir), overrides=list(start.settings), environ={})
        _require_same(app, start.sha256)
        app = app.with_own_code()
        _introduce(channel, app)
        quiet = app.flower is None
        identify_process(run_id=start.run_id, node_id=SERVER_NODE_ID, quiet=quiet)
        by_sampling = _is_sampled(app)
        quorum = app.config.run.min_clients if app.config and not by_sampling else 0
        traces = traces_of("meadow-worker", lambda: _authority_pem(Path(start.run_dir)))
        grid = FleetGrid(
            channel,
            run_id=start.run_id,
            spool=Path(start.spool_dir),
            quorum=quorum,
            cohorts={cohort.group_id: cohort.node_ids for cohort in start.cohorts},
            secret=_secret_in(Path(start.run_dir)),
            tags=_tags_of(app),
            announced_cohort=announced_cohort_of(app),
            relays=channel,
            without_relays=without_relays(app),
            slow_lines={line.node_id: line.bytes_per_s for line in start.slow_lines},
            traces=traces,
        )

        def note(kind: str, detail: Mapping[str, Any]) -> None:
            text = json.dumps(detail, default=str)
            channel.send(pb.WorkerMessage(note=pb.Note(kind=kind, json=text)))

        folder = RunFolder(
            Path(start.run_dir),
            config_toml=resolved_toml(app),
            on_event=note,
            about=lambda client: _about(grid.name_of(client)),
        )
        ledger = open_population(Path(start.run_dir).parents[1])
        share = RunShare(ledger, start.run_id)
        with closing(traces), closing(grid):  # the daemon hangs up once it has the end
            room = DiskCheck(app.config, start, relay_of=channel.relay_of, emit=note)
            summary = execute(app, grid, folder, run_id=start.run_id, share=share, room=room)
        finished = pb.Finished(status=summary["status"], cause=summary["cause"] or "")
    except MeadowError as error:
        traceback.print_exc()
        finished = pb.Finished(status="failed", cause=str(error))
    channel.send(pb.WorkerMessage(finished=finished))
    return 0 if finished.status != "failed" else 1


def _about(name: str | None) -> dict[str, str]:
    """Return the details of a client for its events: its site and its log."""
    return {"log": SITE_LOG} if name is None else {"site": name, "log": SITE_LOG}


def _require_same(app: App, sha256: str) -> None:
    """Check that an app is the submitted version.

    Raises:
        DamageError: it has another hash.
    """
    if app.sha256 != sha256:
        raise DamageError(
            f"{app.folder} is not what was submitted: its SHA-256 is {app.sha256[:12]}..., not "
            f"{sha256[:12]}...; submit the app again"
        )


def _introduce(channel: Channel, app: App) -> None:
    privacy = app.config.privacy if app.config else None
    ready = pb.WorkerReady(
        rounds=rounds_of(app),
        run_config=pack_entries(run_config_of(app)),
        secure_aggregation=bool(privacy and privacy.secure_aggregation.enabled),
        differential_privacy=bool(privacy and privacy.differential_privacy.enabled),
        tags=_tags_of(app),
        cohort=announced_cohort_of(app),
    )
    channel.send(pb.WorkerMessage(ready=ready))


def _is_sampled(app: App) -> bool:
    """Return whether cohorts are secret Poisson samples, which amplifies privacy."""
    private = app.config.privacy.differential_privacy if app.config else None
    return bool(
        private and private.enabled and private.unit == "client" and private.sampling == "poisson"
    )


def announced_cohort_of(app: App) -> int:
    """Return the cohort's size that instructions announce, 0 for its true size.

    The true size of a Poisson sample is as secret as its clients.
    """
    if not _is_sampled(app):
        return 0
    assert app.config is not None
    return int(cohort_of(app.config))


def without_relays(app: App) -> str | None:
    """Return why a run can not have clients behind relays, None if it can."""
    if app.config is None:
        return "is a Flower app, which reads every single reply"
    config = app.config
    if config.privacy.secure_aggregation.enabled:
        return "hides updates in a sum of its own (privacy.secure_aggregation)"
    compression = config.compression
    if compression is not None and {compression.upload, compression.download} != {"none"}:
        return "compresses updates (compression)"
    if config.run.update_norm_max is not None:
        return "bounds the norm of single updates (run.update_norm_max)"
    return None


def _secret_in(folder: Path) -> bytes:
    """Return the key of a run's message ids, which is created at the first call."""
    file = folder / SECRET_FILE
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_file(file, system_entropy(SECRET_BYTES), mode=0o600)
    return file.read_bytes()


def _authority_pem(run_dir: Path) -> bytes:
    """Return the certificate of the server's authority, from the server's folder."""
    return (run_dir.parents[1] / "ca" / "certificate.pem").read_bytes()


def _tags_of(app: App) -> tuple[str, ...]:
    return app.config.selection.tags if app.config else ()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
