"""The task as a Flower ServerApp that leaves a run folder where RUN_FOLDER says."""

import os
from pathlib import Path

import meadow
from meadow.run.run_folder import RunFolder
from task import task

config = meadow.load_config(Path(__file__).with_name("meadow.toml"), environ={})
recorder = RunFolder(
    Path(os.environ["RUN_FOLDER"]), config_toml="", on_event=lambda kind, detail: None
)
app = meadow.server_app(task, config, recorder=recorder)
