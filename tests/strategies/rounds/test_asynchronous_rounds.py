"""FedBuff and FedAsync: by hand, interrupted, lied to; and what they refuse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from meadow.errors import ConfigError, QuorumError
from meadow.flower.messages import arrays_to_params, params_to_arrays
from meadow.strategies.algorithms.algorithm import State
from meadow.strategies.algorithms.catalogue import CATALOGUE
from meadow.strategies.algorithms.fedasync import fedasync
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.algorithms.fedbuff import fedbuff
from meadow.strategies.algorithms.fedprox import fedprox
from meadow.strategies.algorithms.staleness import constant, hinge, polynomial
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.in_flight import OpenInstruction
from meadow.strategies.rounds.plan import RoundPlan
from meadow.strategies.rounds.update_buffer import UpdateBuffer

from ..push_grid import PushGrid

CHANGES = {1: np.float32([1, 2, 4]), 2: np.float32([8, 0, -4])}
SECONDS = {1: 1.0, 2: 3.5}
"""Client 1 answers at 1, 2 and 3 seconds, client 2 at 3.5, with the first params."""
ZEROS = {"w": np.zeros(3, np.float32)}


def adds(message):
    """A client that adds its own three numbers; it has as many examples as 1 and 3."""
    node = message.metadata.dst_node_id
    metrics = MetricRecord({"num-examples": 2 * node - 1, "loss": float(node)})
    if message.metadata.message_type == "evaluate":
        return RecordDict({"metrics": metrics})
    trained = arrays_to_params(message.content["arrays"])["w"] + CHANGES[node]
    return RecordDict({"arrays": params_to_arrays({"w": trained}), "metrics": metrics})


def run(
    grid, asynchronous, *, rounds=2, algorithm=None, recorder=None, model=ZEROS, plan=None, **more
):
    plan = {"min_clients": 2, "seed": 3, "evaluate_every": 0, **(plan or {})}
    strategy = FederatedStrategy(
        algorithm or fedavg(),
        RoundPlan(asynchronous=asynchronous, **plan),
        recorder=recorder,
        clock=itertools.count().__next__,
    )
    return strategy.start(grid, params_to_arrays(model), num_rounds=rounds, **more)


# ---------------------------------------------------------------- by hand


def test_fedbuff_by_hand(kit):
    """Two changes of client 1 make round 1; its next, and client 2's old one, make round 2."""
    recorder = kit.Recorder()
    result = run(PushGrid(adds, SECONDS), fedbuff(buffer_size=2), recorder=recorder)
    first = CHANGES[1].astype(np.float64)
    second = first + (1 * CHANGES[1] + 3 * CHANGES[2] / np.sqrt(2)) / 4
    assert recorder.checkpoints[0].state.params["w"].tolist() == [1, 2, 4]
    np.testing.assert_allclose(result.arrays["w"].numpy(), second, rtol=1e-7)
    rows = recorder.rows
    assert [(row["clients"], row["failures"], row["virtual_s"]) for row in rows] == [
        (2, 0, 2.0),
        (2, 0, 3.5),
    ]
    assert [row["staleness"] for row in rows] == [{"mean": 0, "max": 0}, {"mean": 0.5, "max": 1}]
    assert [row["train"] for row in rows] == [{"loss": 1.0}, {"loss": (1 + 3 * 2) / 4}]
    assert recorder.tables[0].line()["clients"] == [1, 1]


def test_fedasync_by_hand():
    """Each answer moves the params to the client's: half the way, less if it was stale."""
    seconds = {1: 1.0, 2: 1.5}
    result = run(PushGrid(adds, seconds), fedasync(mixing=0.5))
    first = CHANGES[1] / 2
    second = first + 0.5 / np.sqrt(2) * (CHANGES[2] - first)
    np.testing.assert_allclose(result.arrays["w"].numpy(), second, rtol=1e-6)


def test_weightings_by_hand():
    """The three functions of staleness, at the places where they differ."""
    assert [constant()(s) for s in (0, 9)] == [1, 1]
    assert [polynomial(exponent=0.5)(s) for s in (0, 3)] == [1, 0.5]
    assert [hinge(slope=10, grace=4)(s) for s in (0, 4, 5, 6)] == [1, 1, 1 / 11, 1 / 21]


def test_as_many_as_the_buffer_takes_are_a_synchronous_cohort(kit):
    """With equally fast clients, and a buffer for all of them, each round is the synchronous one."""
    seconds = dict.fromkeys(range(1, 6), 1.0)
    for server in ({}, {"server_optimizer": "adam"}):
        algorithm = fedavg(**server)
        asynchronous = run(
            PushGrid(kit.drift, seconds),
            fedbuff(buffer_size=5),
            algorithm=algorithm,
            rounds=1,
            model=kit.model(),
        )
        plan = RoundPlan(seed=3, evaluate_every=0)
        synchronous = FederatedStrategy(algorithm, plan).start(
            kit.Grid(kit.drift, seconds), params_to_arrays(kit.model()), num_rounds=1
        )
        assert bytes_of(asynchronous) == bytes_of(synchronous)


# ---------------------------------------------------------------- laws


PACE = {1: 1.0, 2: 1.3, 3: 2.1, 4: 2.9, 5: 11.0}
EVEN = {1: 1.0, 2: 1.0, 3: 1.0, 4: 2.0, 5: 3.0}
"""Here answers come together: of some, a part makes a round and the rest the next one."""
KINDS = {
    "fedbuff": lambda: fedbuff(buffer_size=3, concurrency=4),
    "fedbuff, hinge, capped": lambda: fedbuff(buffer_size=2, weighting=hinge(), max_staleness=2),
    "fedasync": lambda: fedasync(concurrency=0.8),
}
SERVERS = {
    "sgd": fedavg,
    "momentum": lambda: fedavg(server_momentum=0.9),
    "yogi": lambda: fedavg(server_optimizer="yogi"),
    "fedprox": lambda: fedprox(proximal_mu=0.1),
}
ROUNDS = 7


def bytes_of(result):
    return {name: array.numpy().tobytes() for name, array in result.arrays.items()}


def drifts(kit):
    """Return the kit's client, which also tells a repeated instruction from the first."""

    def client(message):
        if message.metadata.message_type == "train":
            repeat = message.content["config"].get("repeat", 0)
            message.content["config"]["server-round"] += 100 * repeat
        return kit.drift(message)

    return client


class KilledError(Exception):
    """The process is gone."""


@pytest.mark.parametrize("pace", [PACE, EVEN], ids=["uneven", "even"])
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_after_any_round_is_uninterrupted(kit, kind, server, pace):
    """A run that dies after each commit ends with the same bytes, rows, slots and times."""

    class Dying(kit.Recorder):
        def event(self, name, detail):
            if name == "round_committed" and len(self.rows) < ROUNDS:
                raise KilledError

    def attempt(recorder):
        grid = PushGrid(drifts(kit), pace)
        algorithm, how = SERVERS[server](), KINDS[kind]()
        return run(
            grid, how, algorithm=algorithm, recorder=recorder, rounds=ROUNDS, model=kit.model()
        )

    whole, pieces = kit.Recorder(), Dying()
    expected = attempt(whole)
    for _ in range(ROUNDS - 1):
        with pytest.raises(KilledError):
            attempt(pieces)
    assert bytes_of(attempt(pieces)) == bytes_of(expected)
    timeless = [{**row, "duration_s": 0} for row in pieces.rows]
    assert timeless == [{**row, "duration_s": 0} for row in whole.rows]
    last, again = whole.checkpoints[-1].state.slots, pieces.checkpoints[-1].state.slots
    assert {name: kit.bytes_of(slot) for name, slot in last.items()} == {
        name: kit.bytes_of(slot) for name, slot in again.items()
    }
    assert max(row["staleness"]["max"] for row in whole.rows) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_holds_no_more_params_than_are_worked_on(kit, kind):
    """Params of earlier rounds are kept while somebody trains from them, and not longer."""
    recorder = kit.Recorder()
    run(PushGrid(drifts(kit), PACE), KINDS[kind](), recorder=recorder, rounds=ROUNDS)
    for checkpoint in recorder.checkpoints:
        slots = checkpoint.state.slots
        bases = {int(name.partition("-")[2]) for name in slots if name.startswith("base-")}
        assert bases == set(slots["open"]["version"].tolist()) - {checkpoint.state.round}
        limit = KINDS[kind]().max_staleness
        assert limit is None or all(checkpoint.state.round - base <= limit for base in bases)
    assert not recorder.checkpoints[-1].state.slots["open"]["number"].size


def test_the_order_of_arrival_changes_no_bit(kit):
    """The same updates, some of them stale, give the same aggregate in any order."""
    plan, model = RoundPlan(), kit.model()
    old = {name: np.asarray(values / 3) for name, values in model.items()}
    newest = State(params=model, round=1)
    given = [
        OpenInstruction(number=n, clients=(c,), version=v, repeat=r, sent_at_s=0.0)
        for n, (c, v, r) in enumerate([(1, 0, 0), (1, 1, 0), (1, 1, 1), (2, 0, 0), (3, 1, 0)])
    ]
    before = [kit.bytes_of(params) for params in (model, old)]
    seen = set()
    for order in itertools.permutations(range(len(given))):
        buffer = UpdateBuffer(
            state=newest,
            algorithm=fedavg(),
            asynchrony=fedbuff(buffer_size=5),
            plan=plan,
            emit=lambda kind, detail: None,
        )
        for place in order:
            instruction = given[place]
            base = model if instruction.version else old
            told = ConfigRecord({"server-round": 10 * instruction.version + instruction.repeat + 1})
            content = RecordDict({"arrays": params_to_arrays(base), "config": told})
            message = Message(content, instruction.clients[0], "train")
            buffer.take(Message(kit.drift(message), reply_to=message), instruction, base)
        assert buffer.is_full and buffer.contributors == [1, 2, 3]
        seen.add(str(kit.bytes_of(buffer.finish().mean)))
    assert len(seen) == 1
    assert [kit.bytes_of(params) for params in (model, old)] == before


# ---------------------------------------------------------------- who is asked, and when


def test_nobody_waits_for_the_slow(kit):
    """While client 5 trains once, the four others answer as often as they can."""
    recorder = kit.Recorder()
    grid = PushGrid(drifts(kit), {**PACE, 5: 1000.0})
    run(grid, fedbuff(buffer_size=4), recorder=recorder, rounds=10, model=kit.model())
    asked = [message.metadata.dst_node_id for message in grid.sent]
    assert asked.count(5) == 1 and asked.count(1) > 10
    expected_s = 40 / sum(1 / PACE[client] for client in (1, 2, 3, 4))
    assert recorder.rows[-1]["virtual_s"] < 1.2 * expected_s
    assert f"i{asked.index(5) + 1}" in grid.forgotten  # it is told to stop in the end


def test_concurrency_is_how_many_work_at_once(kit):
    """Never more instructions are open than there may be, and a client has one at a time."""
    for concurrency, most in ((2, 2), (0.8, 4), (1.0, 5), (9, 5)):
        grid, open_ = PushGrid(drifts(kit), PACE), []
        pull = grid.pull_messages

        def count(ids, grid=grid, open_=open_, pull=pull):
            nodes = [message.metadata.dst_node_id for _, message in grid.due.values()]
            open_.append((len(nodes), len(set(nodes))))
            return pull(ids)

        grid.pull_messages = count
        how = fedbuff(buffer_size=3, concurrency=concurrency)
        run(grid, how, rounds=4, model=kit.model())
        assert set(open_) == {(most, most)}


def test_an_instruction_says_what_it_is_about(kit):
    """The round that it is for, a deadline, and whether the client has begun there before."""
    grid = PushGrid(adds, SECONDS)
    run(grid, fedbuff(buffer_size=2), plan={"deadline_s": 9.0}, algorithm=fedprox(proximal_mu=0.5))
    told = [(m.metadata.dst_node_id, dict(m.content["config"])) for m in grid.sent[:4]]
    assert told == [
        (1, {"proximal-mu": 0.5, "server-round": 1}),
        (2, {"proximal-mu": 0.5, "server-round": 1}),
        (1, {"proximal-mu": 0.5, "server-round": 1, "repeat": 1}),
        (1, {"proximal-mu": 0.5, "server-round": 2}),
    ]
    assert {message.metadata.ttl for message in grid.sent} == {9.0}


def test_clients_evaluate_at_the_end(kit):
    """The server evaluates as often as it should; clients once, when nobody waits for them."""
    recorder, seen = kit.Recorder(), []

    def central(number, arrays):
        seen.append(number)
        return MetricRecord({"loss": float(number)})

    grid = PushGrid(adds, SECONDS)
    plan = {"evaluate_every": 1}
    run(grid, fedbuff(buffer_size=2), recorder=recorder, plan=plan, evaluate_fn=central)
    assert seen == [0, 1, 2]
    assert [row["evaluate"] for row in recorder.rows] == [{}, {"loss": (1 + 3 * 2) / 4}]


def test_what_was_given_before_a_restart_is_not_given_anew(kit):
    """A grid with a journal knows the instructions since the checkpoint, and whose they are."""
    first, second = PushGrid(adds, SECONDS), PushGrid(adds, SECONDS)
    expected = run(first, fedbuff(buffer_size=2))
    known = {m.metadata.group_id: [m.metadata.dst_node_id] for m in first.sent[:3]}
    second.cohort_of = lambda group: known.get(group, [])
    run(second, fedbuff(buffer_size=2))
    asked = [(m.metadata.group_id, m.metadata.dst_node_id) for m in second.sent[:3]]
    assert asked == [(group, clients[0]) for group, clients in known.items()]
    assert expected.rounds == 2


# ---------------------------------------------------------------- faults


def test_an_answer_counts_once(kit):
    """A reply that comes again and again is that one update."""

    class Stuttering(PushGrid):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.said = []

        def pull_messages(self, ids):
            self.said += super().pull_messages(ids)
            return list(self.said)

    plain = run(PushGrid(adds, SECONDS), fedbuff(buffer_size=2), rounds=4)
    assert bytes_of(run(Stuttering(adds, SECONDS), fedbuff(buffer_size=2), rounds=4)) == bytes_of(
        plain
    )


FAULTS = {
    "error": (lambda message: Error(1, "the disk is gone"), "the disk is gone"),
    "silence": (lambda message: None, "it never answered"),
    "nan": (lambda message: spoilt(message, np.nan), "values that are not finite"),
}


def spoilt(message, value):
    content = adds(message)
    content["arrays"] = params_to_arrays({"w": np.float32([value] * 3)})
    return content


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_answer_ends_nothing(kit, fault):
    """Who fails is told of, and asked again in the next round; the others go on."""
    answer, reason = FAULTS[fault]
    recorder = kit.Recorder()

    def client(message):
        return answer(message) if message.metadata.dst_node_id == 2 else adds(message)

    grid = PushGrid(client, {1: 1.0, 2: 1.5})
    run(grid, fedbuff(buffer_size=2), recorder=recorder, rounds=4)
    told = recorder.heard("client_failed") + recorder.heard("update_refused")
    assert {detail["client"] for detail in told} == {2}
    assert all(row["failures"] <= 1 for row in recorder.rows)
    assert all(reason in detail["reason"] for detail in told)
    assert len({detail["round"] for detail in told}) == len(told) > 1
    assert [row["clients"] for row in recorder.rows] == [2, 2, 2, 2]


def test_what_does_not_fit_on_the_newest_params_is_refused(kit):
    """A change that is finite where it was made, and not where it would be added."""
    recorder, base = kit.Recorder(), {"w": np.float32([-3e38])}
    buffer = UpdateBuffer(
        state=State(params={"w": np.float32([3e38])}, round=1),
        algorithm=fedavg(),
        asynchrony=fedbuff(buffer_size=1, weighting=constant()),
        plan=RoundPlan(),
        emit=recorder.event,
    )
    instruction = OpenInstruction(number=1, clients=(1,), version=0, repeat=0, sent_at_s=0.0)
    told = RecordDict({"arrays": params_to_arrays(base), "config": ConfigRecord()})
    message = Message(told, 1, "train")
    metrics = MetricRecord({"num-examples": 1})
    answer = RecordDict({"arrays": params_to_arrays({"w": np.float32([3e38])}), "metrics": metrics})
    buffer.take(Message(answer, reply_to=message), instruction, base)
    (refused,) = recorder.heard("update_refused")
    assert "on the newest params has values that are not finite" in refused["reason"]
    assert not buffer.is_full and buffer.failures == 1


def test_a_run_without_answers_ends(kit):
    """If everybody has failed since the last round, nobody is left to be asked."""
    grid = PushGrid(lambda message: Error(1, "no"), SECONDS)
    with pytest.raises(QuorumError, match=r"0 of 2 updates, and nobody of 2.*clients 1, 2: no"):
        run(grid, fedbuff(buffer_size=2))
    assert len(grid.sent) == 2


def test_stale_work_is_stopped(kit):
    """Who works on params of more than the allowed rounds before hears that it may stop."""
    recorder = kit.Recorder()
    grid = PushGrid(adds, {1: 1.0, 2: 100.0})
    run(grid, fedbuff(buffer_size=1, max_staleness=2), recorder=recorder, rounds=8)
    stopped = recorder.heard("client_failed")
    assert [(each["round"], each["client"]) for each in stopped] == [(3, 2), (6, 2)]
    assert all("more than 2 rounds before" in each["reason"] for each in stopped)
    second = [m.metadata.group_id for m in grid.sent if m.metadata.dst_node_id == 2]
    assert len(second) == 3 and set(second) <= set(grid.forgotten)
    assert recorder.tables[2].line()["late"] == [2]


def test_a_large_change_is_refused_or_cut(kit):
    """run.update_norm_max is about a client's own delta, however old its params are."""
    recorder = kit.Recorder()
    plan = {"update_norm_max": 5.0, "update_norm_policy": "clip"}
    result = run(
        PushGrid(adds, SECONDS), fedbuff(buffer_size=2), recorder=recorder, plan=plan, rounds=2
    )
    (cut,) = recorder.heard("update_clipped")
    assert cut["client"] == 2 and cut["norm"] == pytest.approx(np.sqrt(80))
    shrunk = CHANGES[2] * 5 / np.sqrt(80)
    expected = CHANGES[1] + (CHANGES[1] + 3 * shrunk / np.sqrt(2)) / 4
    np.testing.assert_allclose(result.arrays["w"].numpy(), expected, rtol=1e-6)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("name", sorted(CATALOGUE.keys() - {"fedavg", "fedprox"}))
def test_algorithms_of_more_than_params_are_refused(kit, name):
    """What travels beside the params, or stays with clients, cannot be carried over."""
    entry = CATALOGUE[name]
    with pytest.raises(ConfigError, match=r"params alone"):
        run(PushGrid(adds, SECONDS), fedbuff(), algorithm=entry.builder(**entry.example))


def test_a_grid_that_adds_up_is_refused(kit):
    """Updates of different ages cannot be weighed in a sum."""
    grid = PushGrid(adds, SECONDS)
    grid.combines_updates = True
    with pytest.raises(ConfigError, match="weigh every single one"):
        run(grid, fedbuff())


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: fedbuff(buffer_size=0), "buffer_size must be a whole number >= 1, got 0"),
        (lambda: fedbuff(concurrency=1.5), "concurrency must be <= 1, got 1.5"),
        (lambda: fedasync(mixing=0), "mixing must be > 0, got 0"),
        (lambda: fedbuff(max_staleness=-1), "max_staleness must be a whole number >= 0, got -1"),
        (lambda: polynomial(exponent=-1), "exponent must be >= 0, got -1"),
    ],
)
def test_bounds(build, said):
    """Every argument has bounds, and the error says which."""
    with pytest.raises(ConfigError, match=said):
        build()
