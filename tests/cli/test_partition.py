"""`meadow partition`: what a person and a program see of a division."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Meadow

SHARED = """
def load_client(site):
    targets = torch.arange(600) % 3
    mine = torch.from_numpy(site.share_of(targets))
    inputs = torch.zeros(600, 8)
    cut = len(mine) // 5
    return meadow.ClientData(
        train=(inputs[mine[cut:]], targets[mine[cut:]]),
        test=(inputs[mine[:cut]], targets[mine[:cut]]),
    )
"""


@pytest.fixture
def shared(app: Path) -> Path:
    """An app whose clients share 600 samples of three classes."""
    text = (app / "task.py").read_text()
    before, after = text.split("\n\ntask = ")
    (app / "task.py").write_text(f"{before}\n{SHARED}\n\ntask = {after}")
    return app


def test_a_person_reads_a_row_a_client(meadow: Meadow, shared: Path) -> None:
    """Samples, classes and distance of each client, and the quantiles of all."""
    said = meadow("partition", "my_app", "--clients", 4, "--set", "simulation.partition=iid")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == ("my_app: 480 samples to train on, 120 to test on, 4 clients (iid, seed 7)")
    header, *rows = lines[2:7]
    assert header.split() == [
        "client",
        "train",
        "test",
        *["class", "0", "class", "1", "class", "2"],
        "distance",
    ]
    for index, row in enumerate(rows):
        client, train, test, *counts, _ = row.split()
        assert (client, train, test) == (str(index), "120", "30")
        assert sum(map(int, counts)) == 120
    kinds = [line.split("  ")[0] for line in lines[8:]]
    assert kinds == ["", "train samples", "test samples", "classes", "distance"]


def test_many_clients_are_summed_up(meadow: Meadow, shared: Path) -> None:
    """Beyond 40 clients only the quantiles are printed."""
    said = meadow("partition", "my_app", "--clients", 100, "--set", "simulation.partition=shards")
    assert "100 clients (shards, 2 shards each, seed 7)" in said.out
    assert len(said.out.splitlines()) == 7


def test_a_program_reads_one_object(meadow: Meadow, shared: Path) -> None:
    """With --format json: every client, however many there are, and the summary."""
    options = ("--set", "simulation.partition=dirichlet", "--set", "simulation.alpha=0.1")
    said = meadow("partition", "my_app", "--clients", 50, *options, "--format", "json")
    (found,) = said.objects
    assert (found["event"], found["app"], len(found["clients"])) == ("partition", "my_app", 50)
    assert sum(each["train"] + each["test"] for each in found["clients"]) == 600
    for each in found["clients"]:
        assert sum(each["labels"].values()) == each["train"]
        assert each["classes"] == sum(count > 0 for count in each["labels"].values())
    assert found["summary"]["distance"]["mean"] > 0.3
    assert found["summary"]["train samples"]["mean"] * 50 == sum(
        each["train"] for each in found["clients"]
    )


def test_regression_has_means(meadow: Meadow, shared: Path) -> None:
    """Floating-point targets have no classes, but a mean and a deviation."""
    text = (shared / "task.py").read_text()
    (shared / "task.py").write_text(
        text.replace("targets = torch.arange(600) % 3", "targets = torch.rand(600)")
    )
    said = meadow("partition", "my_app", "--clients", 3)
    assert said.out.splitlines()[2].split() == ["client", "train", "test", "mean", "deviation"]
    assert "target's mean" in said.out and "distance" not in said.out


def test_a_picture_is_written(meadow: Meadow, shared: Path) -> None:
    """--plot writes a file and says so; a name of another kind is refused at once."""
    pytest.importorskip("matplotlib")
    said = meadow("partition", "my_app", "--plot", "split.png")
    assert said.out.splitlines()[-1] == "see split.png"
    assert Path("split.png").read_bytes().startswith(b"\x89PNG")
    said = meadow("partition", "my_app", "--plot", "split.txt")
    assert said.code == 2 and "must end in .png, .svg, .pdf" in said.err


def test_what_cannot_be_divided_is_refused(meadow: Meadow, shared: Path) -> None:
    """More clients than samples: one line that names a client and the remedy, and no table."""
    said = meadow("partition", "my_app", "--clients", 601)
    assert (said.code, said.out) == (2, "")
    assert "client 0: 600 samples are too few for 601 clients" in said.err
    assert "lower clients or min_samples" in said.err


def test_a_task_that_raises_is_named(meadow: Meadow, shared: Path) -> None:
    """The error says what was raised for which client, and where in the app."""
    text = (shared / "task.py").read_text()
    raising = text.replace("    mine =", '    open("gone")\n    mine =')
    (shared / "task.py").write_text(raising)
    said = meadow("partition", "my_app")
    assert (said.code, said.out) == (1, "")
    assert "client 0: client_data raised FileNotFoundError" in said.err
    assert "(task.py, line " in said.err


def test_flower_apps_divide_their_own_data(meadow: Meadow, tmp_path: Path) -> None:
    """A plain Flower app has no task that could be asked."""
    example = Path(__file__).parent.parent.parent / "examples" / "plain_flower"
    said = meadow("partition", example)
    assert said.code == 2
    assert "is a Flower app: its own code divides its data" in said.err


def test_the_least_is_a_setting(meadow: Meadow, shared: Path) -> None:
    """simulation.min_samples holds for every client of a very uneven division."""
    options = ("--set", "simulation.partition=dirichlet", "--set", "simulation.alpha=0.01")
    least = ("--set", "simulation.min_samples=20")
    said = meadow("partition", "my_app", "--clients", 20, *options, *least, "--format", "json")
    (found,) = said.objects
    sizes = [each["train"] + each["test"] for each in found["clients"]]
    assert min(sizes) == 20 and max(sizes) > 50 and sum(sizes) == 600


def test_natural_groups_must_be_there(meadow: Meadow, shared: Path) -> None:
    """A task that gives no groups is refused with what to call."""
    said = meadow("partition", "my_app", "--set", "simulation.partition=natural")
    assert said.code == 2
    assert "call site.share_of(targets, groups=...)" in said.err
