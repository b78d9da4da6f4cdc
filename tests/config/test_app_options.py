"""Free keys under [app], which a task's function takes as keyword arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Metadata, RecordDict

from meadow.apps.folder import App
from meadow.client.worker.installed_app import InstalledApp
from meadow.config.app_options import OPTIONS_KEY, options_from_text
from meadow.config.load import config_to_toml, load_config, make_config
from meadow.config.rules.builders import training_record
from meadow.errors import AppError, ConfigError, ProtocolError
from meadow.flower.messages import params_to_arrays, rebuild_message
from meadow.run.execute import run_config_of
from meadow.simulations.run import simulate
from meadow.training.module_params import params_of_module
from meadow.transport.blobs import blob_path
from meadow.transport.codec import decode, encode
from meadow.transport.entries import pack_entries
from meadow.transport.fleet_pb2 import Instruction, TrainingStart, TrainingWork
from meadow.transport.writer import BlobWriter

CODE = """
import meadow
import torch
from torch import nn


def load_client(site):
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(40, 4, generator=generator)
    return meadow.ClientData(train=(inputs, (inputs.sum(dim=1) > 0).long()))


def make_task(layers: list, bias: bool = True, *, scale: float = 1.0, shape=None) -> meadow.Task:
    def build():
        wide = [4, *layers, 2]
        return nn.Sequential(*(nn.Linear(a, b, bias=bias) for a, b in zip(wide, wide[1:])))

    return meadow.Task(model=build, loss=meadow.cross_entropy, client_data=load_client)


task = make_task([3])


def broken(**options):
    raise RuntimeError("no such layer")


def nothing():
    return 7
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An app whose task has keyword arguments."""
    made = tmp_path / "optioned"
    made.mkdir()
    (made / "optioned_task.py").write_text(CODE)
    (made / "meadow.toml").write_text(
        '[app]\ntask = "optioned_task:make_task"\nlayers = [8]\n[app.shape]\nwide = 3\n'
        "[run]\nrounds = 1\n[simulation]\nclients = 2\n"
    )
    return made


def shapes(app: App) -> list[tuple[int, ...]]:
    return [tuple(p.shape) for p in app.load_task().model().parameters()]


def test_free_keys_are_keyword_arguments(folder: Path) -> None:
    """Lists, tables and `--set` reach the function, the last over the file."""
    assert shapes(App.load(folder)) == [(8, 4), (8,), (2, 8), (2,)]
    app = App.load(folder, overrides=["app.layers=[6,5]", "app.bias=false", "app.shape.deep=4"])
    assert shapes(app) == [(6, 4), (5, 6), (2, 5)]
    assert app.config is not None
    assert app.config.app.options["shape"] == {"wide": 3, "deep": 4}


def test_the_resolved_file_reads_back(folder: Path, tmp_path: Path) -> None:
    """What a run leaves as its meadow.toml gives the same config."""
    config = load_config(folder, environ={}, overrides=["app.layers=[6,5]", 'app.kind="a b"'])
    (tmp_path / "meadow.toml").write_text(config_to_toml(config))
    assert load_config(tmp_path, environ={}) == config


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("app.layer=[4]", "app.layer is not a keyword of make_task(); did you mean app.layers?"),
        ("app.bias=3", "app.bias must be of type bool, got 3"),
        ("app.scale=wide", "app.scale must be of type float, got 'wide'"),
        ("app.task=optioned_task:task", "app.layers is not a known key: optioned_task:task is a"),
    ],
)
def test_the_signature_decides(folder: Path, setting: str, text: str) -> None:
    """A key that the function does not take, or of another type, is an error that says so."""
    with pytest.raises(ConfigError) as caught:
        App.load(folder, overrides=[setting], environ={}).load_task()
    assert text in str(caught.value)


def test_a_missing_argument_is_named(folder: Path) -> None:
    """An argument without a default must be there."""
    (folder / "meadow.toml").write_text('[app]\ntask = "optioned_task:make_task"\n')
    with pytest.raises(ConfigError, match=r"app\.layers is missing: make_task\(\) needs it"):
        App.load(folder, environ={}).load_task()


@pytest.mark.parametrize(
    ("name", "text"), [("broken", "no such layer"), ("nothing", "made a int, not a meadow.Task")]
)
def test_a_function_that_makes_no_task(folder: Path, name: str, text: str) -> None:
    """What the function raises, or gives instead of a task, is told."""
    (folder / "meadow.toml").write_text(f'[app]\ntask = "optioned_task:{name}"\n')
    with pytest.raises(AppError, match=text):
        App.load(folder, environ={}).load_task()


@pytest.mark.parametrize("value", ["2020-01-01", "inf", "[1, nan]"])
def test_odd_values_are_refused(value: str) -> None:
    """Dates, and what is not finite, cannot be sent to a site."""
    with pytest.raises(ConfigError, match="finite numbers"):
        make_config({}, overrides=[f"app.x={value}"])
    with pytest.raises(ConfigError, match="more than 20000"):
        make_config({"app": {"x": "y" * 30_000}})


def test_sites_get_them_with_the_run(folder: Path) -> None:
    """The run config has them as JSON; an app without any sends nothing more than before."""
    app = App.load(folder, overrides=["app.layers=[6]"], environ={})
    said = run_config_of(app)[OPTIONS_KEY]
    assert options_from_text(said) == {"layers": [6], "shape": {"wide": 3}}
    (folder / "meadow.toml").write_text('[app]\ntask = "optioned_task:task"\n')
    assert OPTIONS_KEY not in run_config_of(App.load(folder, environ={}))


@pytest.mark.parametrize("text", ["[1]", "{", 7, "x" * 30_000, "[" * 15_000])
def test_what_a_server_sends_is_checked(text: object) -> None:
    """Anything but a small table of JSON is refused."""
    with pytest.raises(ProtocolError, match="app-options"):
        options_from_text(text)


def test_a_site_makes_the_task_of_the_run(folder: Path, tmp_path: Path) -> None:
    """The installed code, with the run's keyword arguments; then those of its own file again."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "client.toml").write_text(f'[apps]\noptioned = "{folder}"\n')
    app = App.load(folder, environ={})
    start = TrainingStart(
        app_dir=str(folder), sha256=app.sha256, client_dir=str(site), node_id=1, device="cpu",
        node_config=pack_entries({"site-index": 0, "site-count": 1}),
    )  # fmt: skip
    installed = InstalledApp.load(start)
    for layers in ([6, 5], [8], [2]):
        asked = App.load(folder, overrides=[f"app.layers={layers}"], environ={})
        assert asked.config is not None
        module = asked.load_task().model()
        arrays = params_to_arrays(params_of_module(module))
        config = ConfigRecord({**training_record(asked.config), "server-round": 1})
        metadata = Metadata(1, f"m{layers}", 0, 1, "", "1", 0.0, 600.0, "train")
        content = RecordDict({"arrays": arrays, "config": config})
        instruction = Instruction(
            id=f"i{layers}", run_id=1, sites=1, run_config=pack_entries(run_config_of(asked)),
            envelope=encode(rebuild_message(metadata, content), BlobWriter(tmp_path)),
        )  # fmt: skip
        reply, state = tmp_path / f"reply{layers}", tmp_path / f"state{layers}"
        reply.mkdir()
        state.mkdir()
        work = TrainingWork(
            instruction=instruction, blob_dir=str(tmp_path), reply_dir=str(reply),
            state_dir=str(state),
        )  # fmt: skip
        done = installed.execute(work)
        answer = decode(done.envelope, lambda blob, reply=reply: blob_path(reply, blob.id))
        (record,) = answer.content.array_records.values()
        assert [array.shape for array in record.values()] == shapes(asked)


@pytest.mark.parametrize("executor", ["sequential", "processes"])
def test_a_simulation_trains_the_model_that_is_asked_for(
    folder: Path, tmp_path: Path, executor: str
) -> None:
    """The same options are there in every process."""
    out = tmp_path / executor
    summary = simulate(folder, out=out, executor=executor, overrides=["app.layers=[6,5]"])
    assert summary["status"] == "finished", summary["cause"]
    header = (out / "model.safetensors").read_bytes()
    size = int.from_bytes(header[:8], "little")
    names = json.loads(header[8 : 8 + size])
    assert names["1.weight"]["shape"] == [5, 6]
