"""What the benchmarks of whole federations share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from meadow.apps import App, pack
from meadow.cli.admin import admin_stub
from meadow.transport import fleet_pb2 as pb

__all__ = ["run_to_end"]


def run_to_end(server_dir: Path, app: Path, *settings: str) -> list[dict[str, Any]]:
    """Run an app on a server and return its rows of metrics.jsonl.

    Raises:
        RuntimeError: the run failed.
    """
    archive = pack(App.load(app).folder)
    with admin_stub(server_dir, None) as stub:
        opened = pb.SubmitOpen(size_bytes=len(archive), name=app.name, settings=settings)
        messages = [pb.SubmitMessage(open=opened), pb.SubmitMessage(zip=archive)]
        run = stub.Submit(iter(messages))
        for _ in stub.Watch(pb.RunId(id=run.id)):
            pass
        final = stub.ShowRun(pb.RunId(id=run.id)).run
    if final.status != "finished":
        raise RuntimeError(f"the run {final.status}: {final.cause}")
    lines = (server_dir / "runs" / str(run.id) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
