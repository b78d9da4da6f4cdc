"""Asynchronous rounds: clients train all the time, and a round is the next few updates.

An answer makes room for another instruction, with the params that are the newest when all answers
that have come are used. So a slow client holds nobody up; what it answers counts for what it is worth by then (`staleness.py`).

Clients evaluate after the last round only: nobody is asked to wait for that before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from ...errors import ConfigError, QuorumError
from ...flower.messages import params_to_arrays
from ..algorithms.algorithm import State
from ..algorithms.asynchrony import Asynchrony, needs_more_than_params
from ..algorithms.combined import clients_of
from ..algorithms.metrics import Metrics
from .broadcast import instruction_for_all
from .cohort import draw_idle, size_of_cohort, wait_for_clients, wait_for_replies
from .failures import named
from .grids import adds_exactly, combines_updates, forget_group, name_of, recall_group, relay_of
from .in_flight import Again, InFlight, OpenInstruction, group_of
from .recorder import RoundTable
from .relayed import require_sums_suffice
from .replies import collect_evaluation
from .rounds import RoundTerms
from .run_state import Meter, RunState
from .update_buffer import UpdateBuffer
from .virtual_time import begin_at, draw_some, now_s_of

__all__ = ["AsynchronousRounds"]


class AsynchronousRounds:
    """Keeps clients at work, and makes a round of every so many of their updates."""

    def __init__(
        self, run_state: RunState, asynchrony: Asynchrony, *, clock: Callable[[], float]
    ) -> None:
        self._run_state = run_state
        self._asynchrony = asynchrony
        self._plan = run_state.plan
        self._clock = clock
        self._in_flight = InFlight()
        self._again: Again | None = ()
        """What is to be given again after a restart; None once it was."""
        self._arrived: deque[Message] = deque()
        self._contents: dict[tuple[int, int], RecordDict] = {}

    def refuse_misfit(self, grid: Grid) -> None:
        """Refuse a grid that adds updates up, and algorithms that are about whole cohorts."""
        algorithm = self._run_state.algorithm
        if needs_more_than_params(algorithm):
            raise ConfigError(
                f"{algorithm.name} sends or keeps more than params, or sees who is in a round, and "
                "asynchronous rounds carry over params alone: use fedavg or fedprox, or "
                "synchronous rounds"
            )
        require_sums_suffice(algorithm, grid)
        if combines_updates(grid) and not adds_exactly(grid):
            raise ConfigError(
                f"{type(grid).__name__} adds updates up, and asynchronous rounds weigh every "
                "single one: use another grid, or synchronous rounds"
            )

    def recall(self, state: State) -> State:
        """Remember what was under way at a checkpoint."""
        self._in_flight, state, self._again = InFlight.recall(state)
        self._arrived.clear()
        self._contents.clear()
        return state

    def run(self, grid: Grid, terms: RoundTerms) -> None:
        """Take updates until there are enough, and make the next params of them."""
        run_state, meter = self._run_state, Meter(self._clock, grid)
        if self._again is not None:
            self._give_again(grid, terms, self._again)
        buffer = UpdateBuffer(
            state=run_state.state,
            algorithm=run_state.algorithm,
            asynchrony=self._asynchrony,
            plan=self._plan,
            emit=run_state.emit,
            combined=adds_exactly(grid),
        )
        if not self._arrived:
            self._fill(grid, terms, buffer)
        number = run_state.state.round + 1
        run_state.emit("round_started", {"round": number, "clients": len(self._in_flight)})
        while not buffer.is_full:
            if (reply := self._next_reply(grid)) is not None:
                self._take(reply, buffer)
            if not buffer.is_full and not self._arrived:
                self._fill(grid, terms, buffer)
        before = run_state.state
        run_state.apply(buffer.finish())
        self._end(grid, terms, buffer, before, meter)

    # ------------------------------------------------------------------ instructions

    def _fill(self, grid: Grid, terms: RoundTerms, buffer: UpdateBuffer) -> None:
        """Give instructions until as many clients are at work as there should be.

        Raises:
            QuorumError: nobody is at work, and nobody can be.
        """
        number, idle = buffer.number, not len(self._in_flight)
        needed, emit = self._plan.min_clients, self._run_state.emit
        present = (
            wait_for_clients(
                grid,
                needed,
                emit=lambda count: emit("waiting", {"connected": count, "needed": needed}),
            )
            if idle
            else grid.get_node_ids()
        )
        present = present if isinstance(present, range) else sorted(present)
        at_once = size_of_cohort(len(present), cohort=self._asynchrony.concurrency, at_least=1)
        missing = at_once - len(self._in_flight)
        if missing > 0:
            seed, unwanted = self._plan.seed, self._busy_on(grid, present) | buffer.failed.keys()
            together: dict[tuple[int, int], list[int]] = {}
            for client in draw_idle(
                lambda size: draw_some(
                    grid, present, size, wait=idle, seed=seed, turn=self._in_flight.next_number
                ),
                unwanted,
                missing,
            ):
                if relay := relay_of(grid, client):
                    behind = relay, self._in_flight.repeat_of(client)
                    together.setdefault(behind, []).append(client)
                else:
                    self._give(grid, terms, self._new(grid, [client]))
            for clients in together.values():
                self._give(grid, terms, self._new(grid, clients))
        if not len(self._in_flight):
            raise QuorumError(
                f"round {number}: {len(buffer)} of {self._asynchrony.buffer_size} updates, and "
                f"nobody of {len(present)} connected clients is left to be asked"
                + named(buffer.failed, name_of(grid))
            )

    def _busy_on(self, grid: Grid, present: Iterable[int]) -> set[int]:
        """Return the clients that are at work, and those behind relays that are: a relay has one
        instruction at a time."""
        busy = self._in_flight.busy
        if not adds_exactly(grid):
            return busy
        relays = {relay_of(grid, client) for client in busy} - {0}
        return busy.union(client for client in present if relay_of(grid, client) in relays)

    def _new(self, grid: Grid, clients: Iterable[int]) -> OpenInstruction:
        version, now_s = self._run_state.state.round, now_s_of(grid)
        return self._in_flight.new(clients, version=version, now_s=now_s)

    def _give(self, grid: Grid, terms: RoundTerms, instruction: OpenInstruction) -> str:
        content, group = self._content_of(instruction, terms), group_of(instruction.number)
        messages = [
            Message(content, client, MessageType.TRAIN, ttl=terms.deadline_s, group_id=group)
            for client in instruction.clients
        ]
        (id_,) = grid.push_messages(messages)
        self._in_flight.add(id_, instruction)
        return id_

    def _content_of(self, instruction: OpenInstruction, terms: RoundTerms) -> RecordDict:
        """Return a client's instruction; clients with the same version of the params share its content."""
        run_state, key = self._run_state, (instruction.version, instruction.repeat)
        if key not in self._contents:
            base = self._in_flight.base_of(instruction, run_state.state)
            arrays = run_state.arrays if base is run_state.state.params else params_to_arrays(base)
            params_config: Mapping[str, float | int | str | bool] = {
                **run_state.algorithm.client_config,
                **self._plan.instructed(instruction.version + 1),
                "server-round": instruction.version + 1,
                **({"repeat": instruction.repeat} if instruction.repeat else {}),
            }
            config = ConfigRecord({**terms.train_config, **params_config})
            self._contents[key] = RecordDict({"arrays": arrays, "config": config})
        return self._contents[key]

    def _give_again(self, grid: Grid, terms: RoundTerms, again: Again) -> None:
        """After a restart: what was under way still is, on grids that know and on those that do not.

        A grid with a journal has the answers, and those instructions too that were given since the
        checkpoint.
        """
        now_s = now_s_of(grid)
        self._forget(grid)
        arrived = []
        for instruction, had_arrived in again:
            begin_at(grid, instruction.sent_at_s)
            id_ = self._give(grid, terms, instruction)
            arrived += [id_] if had_arrived else []
        begin_at(grid, now_s)
        while known := recall_group(grid, group_of(self._in_flight.next_number)):
            self._give(grid, terms, self._new(grid, known))
        if arrived:
            self._arrived.extend(grid.pull_messages(arrived))
        self._again = None
        self._contents.clear()

    # ------------------------------------------------------------------ answers

    def _next_reply(self, grid: Grid) -> Message | None:
        """Return the next answer; None if it was waited in vain, because clients came or went."""
        if not self._arrived:
            ids = self._in_flight.ids
            self._arrived.extend(grid.pull_messages(ids))
            if not self._arrived:
                wait_for_replies(grid, ids)
                return None
        return self._arrived.popleft()

    def _take(self, reply: Message, buffer: UpdateBuffer) -> None:
        id_ = reply.metadata.reply_to_message_id
        instruction = self._in_flight.settle(id_, clients_of(reply))
        if instruction is not None:  # else nobody waits for it: it was too stale
            base = self._in_flight.base_of(instruction, self._run_state.state)
            buffer.take(reply, instruction, base)

    # ------------------------------------------------------------------ the end of a round

    def _end(
        self, grid: Grid, terms: RoundTerms, buffer: UpdateBuffer, before: State, meter: Meter
    ) -> None:
        """Evaluate, commit, and drop the params of versions that no client works on."""
        run_state, number = self._run_state, buffer.number
        stopped = self._stop_stale(buffer)
        if number == terms.last:
            self._stop_all(grid)
        self._in_flight.end_round(before)
        self._contents.clear()
        table = RoundTable(
            round=number, train=buffer.table, failed=sorted(buffer.failed), late=sorted(stopped)
        )
        evaluated: Metrics = {}
        unevaluated: set[int] = set()
        central: Metrics = {}
        if self._plan.evaluates(number, last=terms.last):
            if number == terms.last:
                evaluated = self._evaluate(grid, terms, buffer, table, unevaluated)
            central = run_state.measure(number, terms.evaluate)
        staleness = buffer.staleness
        row = {
            "round": number,
            "clients": len(buffer),
            "failures": buffer.failures + len(unevaluated),
            "train": buffer.metrics(),
            "evaluate": evaluated,
            "server": central,
            "privacy": None,
            "staleness": {"mean": sum(staleness) / len(staleness), "max": max(staleness)},
            **meter.read(grid),
        }
        arrived = {reply.metadata.reply_to_message_id for reply in self._arrived}
        run_state.commit(row, table, self._in_flight.kept(run_state.state, arrived))
        self._forget(grid)

    def _stop_stale(self, buffer: UpdateBuffer) -> list[int]:
        """Cancel clients that work on params older than `max_staleness`."""
        oldest = self._asynchrony.max_staleness
        number, reason = buffer.number, f"is on params of more than {oldest} rounds before"
        stale = self._in_flight.settle_where(
            lambda given: oldest is not None and number - given.version > oldest
        )
        for instruction in stale:
            for client in instruction.clients:
                buffer.fail(client, reason)
        return [client for instruction in stale for client in instruction.clients]

    def _stop_all(self, grid: Grid) -> None:
        """Stop everybody: the last params are made."""
        for instruction in self._in_flight.settle_where(lambda given: True):
            forget_group(grid, group_of(instruction.number))

    def _forget(self, grid: Grid) -> None:
        """What was settled before the last commit is not asked about again."""
        for number in self._in_flight.settled:
            forget_group(grid, group_of(number))
        self._in_flight.settled = []

    def _evaluate(
        self,
        grid: Grid,
        terms: RoundTerms,
        buffer: UpdateBuffer,
        table: RoundTable,
        failed: set[int],
    ) -> Metrics:
        run_state, number, clients = self._run_state, buffer.number, buffer.contributors
        config = terms.evaluate_config
        questions = instruction_for_all(
            MessageType.EVALUATE, number, clients, run_state.arrays, config, {}
        )
        replies = grid.send_and_receive(questions, timeout=terms.deadline_s)
        return collect_evaluation(
            replies,
            number=number,
            clients=clients,
            combined=adds_exactly(grid),
            emit=run_state.emit,
            table=table.evaluate,
            failed=failed,
        )
