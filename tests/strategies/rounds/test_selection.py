"""Drawing a cohort by data, loss and utility: the laws, and what each is good for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from meadow.config.load import make_config
from meadow.errors import ConfigError
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.strategies.algorithms.algorithm import State
from meadow.strategies.algorithms.client_memory import ClientMemory, with_memory, without_memory
from meadow.strategies.algorithms.combined import ClientTable
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.algorithms.scaffold import scaffold
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan
from meadow.strategies.rounds.selection import KINDS, Selection, select_cohort

identify_process(run_id=1, node_id=0)


def memory_of(
    examples: dict[int, float], losses: dict[int, float], number: int = 1
) -> ClientMemory:
    table = ClientTable()
    table.add(list(examples), list(examples.values()), {"loss": [losses[c] for c in examples]})
    return ClientMemory.empty().after(table, number)


def draws(kind: Any, memory: ClientMemory, size: int, number: int, **how: Any) -> Counter[int]:
    """Count how often each of ten clients is drawn in `number` rounds."""
    counts: Counter[int] = Counter()
    for round_number in range(1, number + 1):
        counts.update(
            select_cohort(
                range(1, 11),
                size,
                memory,
                Selection(kind=kind, **how),
                seed=3,
                round_number=round_number,
            )
        )
    return counts


@pytest.mark.parametrize("kind", KINDS)
@given(
    ids=st.sets(st.integers(1, 10**12), min_size=1, max_size=30),
    size=st.integers(1, 40),
    seed=st.integers(0, 2**40),
    known=st.lists(st.tuples(st.floats(1, 1e9), st.floats(0, 1e6)), max_size=20),
)
def test_a_cohort_is_so_many_of_those_there(
    kind: Any, ids: set[int], size: int, seed: int, known: list[tuple[float, float]]
) -> None:
    """It is ascending, without repetition, and depends on the set of clients alone."""
    some = sorted(ids)[: len(known)]
    memory = memory_of(
        {c: known[i][0] for i, c in enumerate(some)}, {c: known[i][1] for i, c in enumerate(some)}
    )
    how = {"seed": seed, "round_number": 4}
    found = select_cohort(sorted(ids), size, memory, Selection(kind=kind), **how)
    assert found == sorted(set(found)) and set(found) <= ids
    assert len(found) == min(size, len(ids))
    backwards = sorted(ids, reverse=True)
    assert found == select_cohort(backwards, size, memory, Selection(kind=kind), **how)


def test_chances_are_in_proportion_to_examples() -> None:
    """With one client a round, client k of k examples is drawn k / 55 of the time."""
    memory = memory_of({c: float(c) for c in range(1, 11)}, dict.fromkeys(range(1, 11), 1.0))
    rounds = 4000
    counts = draws("examples", memory, 1, rounds)
    for client in range(1, 11):
        expected = rounds * client / 55
        assert abs(counts[client] - expected) < 5 * np.sqrt(expected)


def test_unknown_clients_count_as_the_mean() -> None:
    """Those who never trained are drawn as often as a client of mean size."""
    counts = draws("examples", memory_of({1: 10.0, 2: 30.0}, {1: 1.0, 2: 1.0}), 1, 2000)
    others = np.mean([counts[client] for client in range(3, 11)])
    assert counts[1] < 0.7 * others < 0.7 * counts[2]


def test_power_of_choice_prefers_large_losses_and_the_unknown() -> None:
    """With all as candidates those who never trained come first, and then the largest losses."""
    memory = memory_of(dict.fromkeys(range(1, 9), 5.0), {c: float(c) for c in range(1, 9)})
    selection = Selection(kind="power_of_choice", candidates=3)
    found = select_cohort(range(1, 11), 4, memory, selection, seed=1, round_number=2)
    assert found == [7, 8, 9, 10]
    counts = draws("power_of_choice", memory, 1, 400, candidates=2)
    assert counts[8] > 2 * counts[2]


def test_utility_is_by_examples_and_loss_and_explores() -> None:
    """Useful clients are drawn again and again, and a tenth of a cohort is new."""
    sizes, losses = (
        dict.fromkeys(range(1, 7), 100.0),
        {c: 2.0 if c < 4 else 0.1 for c in range(1, 7)},
    )
    counts = draws("utility", memory_of(sizes, losses), 4, 300, exploration=0.25)
    assert counts[1] == counts[2] == counts[3] == 300
    assert sum(counts[client] for client in range(7, 11)) == 300
    assert all(counts[client] == 0 for client in range(4, 7))


def test_a_client_that_was_not_drawn_for_long_gains_utility() -> None:
    """Of two alike the one that trained long ago is drawn."""
    memory = memory_of({1: 1.0}, {1: 1e-6}, number=1)
    table = ClientTable()
    table.add([2], [1.0], {"loss": [1e-6]})
    memory = memory.after(table, 90)
    selection = Selection(kind="utility", exploration=0)
    found = select_cohort([1, 2], 1, memory, selection, seed=1, round_number=100)
    assert found == [1]


def test_the_memory_goes_through_a_checkpoint() -> None:
    """What is known is read back from arrays, beside an algorithm's own slots."""
    memory = memory_of({3: 7.0, 1: 2.0}, {3: 0.5, 1: 1.5}, number=6)
    state = State(params={}, round=6, slots={"momentum": {}})
    found, read = without_memory(with_memory(state, memory))
    assert found.slots.keys() == {"momentum"}
    assert read.clients.tolist() == [1, 3]
    known = read.of(np.array([1, 2, 3]))
    np.testing.assert_array_equal(known.loss, [1.5, np.nan, 0.5])
    np.testing.assert_array_equal(known.examples, [2, np.nan, 7])
    assert known.round.tolist() == [6, 0, 6]
    assert without_memory(state)[0].slots.keys() == {"momentum"}


OPTIMA = np.linspace(-1, 0.4, 12)
"""Of clients 1 to 12; all params begin beyond them, and some have farther to go than others."""


def quadratic(message: Message) -> RecordDict:
    """A client that goes a tenth of the way to its own optimum."""
    client = message.metadata.dst_node_id
    sent = arrays_to_params(message.content["arrays"])
    loss = float(np.square(sent["at"] - OPTIMA[client - 1]).mean())
    metrics = MetricRecord({"num-examples": 1, "loss": loss})
    if message.metadata.message_type == "evaluate":
        return RecordDict({"metrics": metrics})
    made = {name: values + 0 for name, values in sent.items()}
    made["at"] = sent["at"] + (OPTIMA[client - 1] - sent["at"]) / 10
    return RecordDict({"arrays": params_to_arrays(made), "metrics": metrics})


def run(
    kit: Any,
    kind: Any,
    recorder: Any = None,
    *,
    rounds: int = 8,
    seed: int = 2,
    build: Any = fedavg,
) -> Any:
    plan = RoundPlan(cohort=4, seed=seed, selection=Selection(kind=kind))
    strategy = FederatedStrategy(build(), plan, recorder=recorder)
    initial = params_to_arrays({"at": np.full(2, 0.9)})
    return strategy.start(
        kit.Grid(quadratic, range(1, 13)), initial, rounds, train_config=ConfigRecord()
    )


@pytest.mark.parametrize("build", [fedavg, scaffold])
@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_at_every_round_is_uninterrupted(kit: Any, kind: Any, build: Any) -> None:
    """The cohorts and the params of a run that is resumed each round are those of one that is not."""
    whole, pieces = kit.Recorder(), kit.Recorder()
    expected = run(kit, kind, whole, build=build)
    for rounds in range(1, 9):
        result = run(kit, kind, pieces, rounds=rounds, build=build)
    assert [table.line()["clients"] for table in pieces.tables] == [
        table.line()["clients"] for table in whole.tables
    ]
    assert result.arrays["at"].numpy().tobytes() == expected.arrays["at"].numpy().tobytes()


def test_power_of_choice_converges_faster(kit: Any) -> None:
    """The loss over all clients after a few rounds is smaller than with uniform cohorts."""
    losses = {
        kind: np.mean(
            [
                np.square(run(kit, kind, rounds=10, seed=seed).arrays["at"].numpy()[0] - OPTIMA)
                for seed in range(8)
            ]
        )
        for kind in ("uniform", "power_of_choice")
    }
    least = np.square(OPTIMA.mean() - OPTIMA).mean()
    assert losses["power_of_choice"] - least < 0.9 * (losses["uniform"] - least)


def test_only_those_who_are_there_are_drawn(kit: Any) -> None:
    """A grid that knows who is available is asked for all of them, and chosen among."""

    class Available(kit.Grid):  # type: ignore[misc,name-defined]
        def draw_cohort(self, *, cohort: float, **_: Any) -> list[int]:
            assert cohort == 1.0
            return [2, 4, 6, 8, 10]

    recorder = kit.Recorder()
    plan = RoundPlan(cohort=3, selection=Selection(kind="utility"))
    FederatedStrategy(fedavg(), plan, recorder=recorder).start(
        Available(quadratic, range(1, 13)), params_to_arrays({"at": np.zeros(2)}), 4
    )
    for table in recorder.tables:
        drawn = table.line()["clients"]
        assert len(drawn) == 3 and set(drawn) <= {2, 4, 6, 8, 10}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"kind": "best"}, "selection.kind must be one of"),
        ({"candidates": 0.5}, "selection.candidates must be >= 1"),
        ({"exploration": 2}, "selection.exploration must be <= 1"),
    ],
)
def test_a_bad_selection_is_named(values: Any, sentence: str) -> None:
    """A value out of its bounds is an error that says so."""
    with pytest.raises(ConfigError, match=sentence):
        Selection(**values)


def test_secure_sums_name_nobody_to_select_by() -> None:
    """Where only sums are seen there is nothing to go by, and the configuration is refused."""
    section = {"secure_aggregation": {"enabled": True}}
    values = {"run": {"min_clients": 3}, "privacy": section}
    with pytest.raises(ConfigError, match="is by what single clients report"):
        make_config({**values, "selection": {"kind": "utility"}})


def test_who_was_heard_least_is_drawn_first() -> None:
    """Clients that are there every second round are heard as often as those always there."""
    memory, heard = ClientMemory.empty(), Counter[int]()
    for number in range(1, 61):
        there = [c for c in range(1, 11) if c <= 5 or number % 2]
        how = {"seed": 3, "round_number": number}
        drawn = select_cohort(there, 2, memory, Selection(kind="least_often"), **how)
        table = ClientTable()
        table.add(drawn, [1.0] * len(drawn), {"loss": [1.0] * len(drawn)})
        memory = memory.after(table, number, drawn)
        heard.update(drawn)
    assert sum(heard.values()) == 120 and set(heard.values()) <= {11, 12, 13}


def test_cyclic_selection_goes_round() -> None:
    """With one client a round, everybody trains once before anybody does again."""
    kind = Selection(kind="cyclic")
    how = {"memory": ClientMemory.empty(), "selection": kind, "seed": 3}
    drawn = [select_cohort([4, 9, 7], 1, round_number=n, **how) for n in range(1, 7)]
    assert drawn == [[4], [7], [9], [4], [7], [9]]


def largest(clients: Any, known: Any, *, size: int, round_number: int, generator: Any) -> Any:
    """Return those with the largest losses."""
    return clients[np.argsort(-np.nan_to_num(known.loss), kind="stable")[:size]]


def own(choose: Any) -> Selection:
    return Selection(kind="mine:choose", choose=choose)


def test_a_selection_of_ones_own() -> None:
    """It gets the clients that are there, what is known of them, and random numbers that repeat."""
    memory = memory_of({1: 5, 2: 5, 4: 5}, {1: 0.5, 2: 3.0, 4: 2.0})
    given = {"seed": 1, "round_number": 2}
    assert select_cohort([4, 1, 2, 3], 2, memory, own(largest), **given) == [2, 4]

    def anyhow(clients: Any, known: Any, *, size: int, generator: Any, **rest: Any) -> Any:
        return generator.choice(clients, size, replace=False).tolist()

    drawn = [
        [
            select_cohort(range(1, 50), 5, memory, own(anyhow), seed=seed, round_number=number)
            for number in (1, 2)
        ]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2] and drawn[0][0] != drawn[0][1]


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ([1], "1 clients, 1 different ones"),
        ([1, 1], "2 clients, 1 different ones"),
        ([1, 2, 3], "3 clients, 3 different ones"),
        ([1, 99], "client 99, which is not there"),
        ([0.0, 1.0], "float64 (2,), not a list of clients"),
        ([[1, 2]], "int64 (1, 2), not a list of clients"),
        (None, "object (), not a list of clients"),
        ([], "float64 (0,), not a list of clients"),
    ],
)
def test_what_an_own_selection_must_return(chosen: Any, says: str) -> None:
    """So many different ones of the clients that are there."""
    with pytest.raises(ConfigError) as caught:
        select_cohort(
            range(1, 6),
            2,
            ClientMemory.empty(),
            own(lambda *_, **__: chosen),
            seed=1,
            round_number=1,
        )
    assert f"selection.kind 'mine:choose' returned {says}; return 2 different ones" in str(
        caught.value
    )
