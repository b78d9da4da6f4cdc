"""A fake fleet, an enrolled client's folder, and an app for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from meadow.client.agent import Agent
from meadow.client.events import Event
from meadow.client.identity_folder import IdentityFolder
from meadow.client.training import Trainer

from .fake_fleet import FakeFleet

COUNTING_APP = '''
"""Counts how often it was executed, in Context.state, and adds that to the params."""
import os
from pathlib import Path
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

def answer(message, context):
    count = int(context.state["counter"]["count"]) + 1 if "counter" in context.state else 1
    context.state["counter"] = ConfigRecord({"count": count})
    if "kill" in context.node_config:
        file = Path(context.node_config["kill"])
        left = int(file.read_text())
        if left:
            file.write_text(str(left - 1))
            os.kill(os.getpid(), 9)
    if "raise" in context.run_config:
        raise ValueError("no data today")
    params = [array + count for array in message.content["arrays"].to_numpy_ndarrays()]
    context.state["params"] = ArrayRecord(params)
    metrics = MetricRecord({"num-examples": 10, "count": count, "pid": os.getpid(),
                            "site": context.node_config["site-index"],
                            "sites": context.node_config["site-count"]})
    return Message(RecordDict({"arrays": ArrayRecord(params), "metrics": metrics}),
                   reply_to=message)

@app.train()
def train(message, context):
    return answer(message, context)

@app.evaluate()
def evaluate(message, context):
    return answer(message, context)
'''
PYPROJECT = """
[project]
name = "counting"
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "counting:server"
clientapp = "counting:app"
"""
