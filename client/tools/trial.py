"""What `meadow client doctor` says about training: it has another process try it out."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..agent.warm_process import training_environment
from ..owner.owner import Owner
from .finding import Finding

__all__ = ["tried_out"]

WAIT_S = 180.0
MODULE = "meadow.client.tools.batch_probe"


async def tried_out(owner: Owner, app: str, log: Path) -> Finding:
    """Measure time and memory of a local round; a round that cannot be tried out is no problem."""
    subject = f"fit {app}"
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", MODULE, "--dir", str(owner.directory), "--app", app),
            env={**os.environ, **training_environment(owner.config().device)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=output,
        )
    try:
        async with asyncio.timeout(WAIT_S):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        text = (
            f"a few steps take longer than {WAIT_S:.0f} s; use a faster device or a smaller batch"
        )
        return Finding(subject=subject, ok=False, text=text)
    lines = said.decode(errors="replace").splitlines()
    if process.returncode or not lines:
        text = f"its steps ended the process with status {process.returncode}; see {log}"
        return Finding(subject=subject, ok=False, text=text)
    found = json.loads(lines[-1])  # what the app prints comes before
    if "problem" in found:
        return Finding(subject=subject, ok=False, text=found["problem"])
    if "untried" in found:
        return Finding(subject=subject, ok=True, text=f"not tried out: {found['untried']}")
    return Finding(subject=subject, ok=True, text=_sentence(found))


def _sentence(found: Mapping[str, Any]) -> str:
    return (
        f"a round takes about {found['round_s']:.1f} s ({found['examples_a_second']:.0f} examples "
        f"a second) and {found['memory_mb']} of {found['room_mb']} MB with {found['batch']} "
        f"examples at once; about {found['batch_max']} would fit, {found['batch_tried']} were tried"
    )
