"""Support for Flower's older server API, `ServerAppComponents` and workflows: rounds in one step.

That API's server sends to every client from a separate thread, and aggregates the results in order of
arrival. Here a round's messages are sent as one batch, and its results are in the order of the clients,
so that a run is reproducible and a round can be counted and replayed. What the API does not report
(its history, the params at the end, a secure sum that failed) is recorded.

    with older_api(observed.watch) as seen:
        server_app(observed, context)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Protocol

from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.common import Code
from flwr.compat.common import recorddict_compat as compat
from flwr.server import History, Server
from flwr.server import server as older_server
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

from .rounds import RoundWatch

__all__ = ["OlderApi", "older_api"]

PARAMS_RECORD = "parameters"
"""Where Flower's workflows keep their params. Source: flwr 1.41, MAIN_PARAMS_RECORD."""
STAGES = ("setup", "share_keys", "collect_masked_vectors", "unmask")


class _State(Protocol):
    """The state of SecAgg+ in a round. Source: flwr 1.41, WorkflowState."""

    num_shares: int
    threshold: int
    sampled_node_ids: set[int]
    active_node_ids: set[int]


@dataclass(slots=True)
class OlderApi:
    """What a run of the older API produced."""

    arrays: ArrayRecord | None = None
    """The params at the end."""
    sums: int = 0
    """The number of secure sums that were completed."""
    halted: list[str] = field(default_factory=list)
    """The reasons why other secure sums stopped, as sentences."""


@contextmanager
def older_api(watch: RoundWatch) -> Iterator[OlderApi]:
    """Within the block, send each round of the older API as one batch, and report it to `watch`.

    Edge cases: messages to client proxies other than Flower's own are sent as Flower sends them.
        Only one run in a process may use it at a time.
    """
    seen = OlderApi()
    with ExitStack() as restored:

        def wrap(owner: Any, name: str, wrapper: Callable[..., Callable[..., Any]]) -> None:
            plain = getattr(owner, name)
            restored.callback(setattr, owner, name, plain)
            setattr(owner, name, wraps(plain)(wrapper(plain)))

        wrap(older_server, "fit_clients", _together(MessageType.TRAIN))
        wrap(older_server, "evaluate_clients", _together(MessageType.EVALUATE))
        for kind, name in HISTORY:
            wrap(History, name, _reported(watch, kind))
        for owner in _family(Server):
            if "fit" in vars(owner):
                wrap(owner, "fit", _params_of_server(seen))
        wrap(DefaultWorkflow, "__call__", _params_of_workflow(seen))
        for stage in STAGES:
            wrap(SecAggPlusWorkflow, f"{stage}_stage", _watched_stage(seen, stage))
        yield seen


HISTORY = (
    ("server", "add_loss_centralized"),
    ("server", "add_metrics_centralized"),
    (MessageType.TRAIN, "add_metrics_distributed_fit"),
    (MessageType.EVALUATE, "add_loss_distributed"),
    (MessageType.EVALUATE, "add_metrics_distributed"),
)


def _family(kind: type[Server]) -> set[type[Server]]:
    return {kind}.union(*(_family(child) for child in kind.__subclasses__()))


# ------------------------------------------------------------------ a round's messages

Asked = list[tuple[Any, Any]]
Answers = tuple[list[tuple[Any, Any]], list[Any]]


def _together(kind: str) -> Callable[..., Callable[..., Answers]]:
    """Return a wrapper of `fit_clients` or `evaluate_clients` that sends one batch."""

    def wrapper(plain: Callable[..., Answers]) -> Callable[..., Answers]:
        def ask(
            client_instructions: Asked,
            max_workers: int | None,
            timeout: float | None,
            group_id: int,
        ) -> Answers:
            proxies = {proxy.node_id: proxy for proxy, _ in client_instructions if _is_own(proxy)}
            if not proxies or len(proxies) != len(client_instructions):
                return plain(client_instructions, max_workers, timeout, group_id)
            batch = [
                Message(
                    content=_records(instruction, kind),
                    message_type=kind,
                    dst_node_id=proxy.node_id,
                    group_id=str(group_id) if group_id else "",
                    ttl=timeout,
                )
                for proxy, instruction in client_instructions
            ]
            grid = next(iter(proxies.values())).grid
            replies = {r.metadata.src_node_id: r for r in grid.send_and_receive(batch)}
            return _sorted_out(proxies, replies, kind)

        return ask

    return wrapper


def _is_own(proxy: object) -> bool:
    return type(proxy) is GridClientProxy


def _records(instruction: Any, kind: str) -> RecordDict:
    if kind == MessageType.TRAIN:
        return compat.fitins_to_recorddict(instruction, keep_input=True)
    return compat.evaluateins_to_recorddict(instruction, keep_input=True)


def _sorted_out(
    proxies: Mapping[int, GridClientProxy], replies: Mapping[int, Message], kind: str
) -> Answers:
    """Return (results, failures) as Flower's older strategies take them."""
    results: list[tuple[Any, Any]] = []
    failures: list[Any] = []
    for node_id, proxy in proxies.items():
        reply = replies.get(node_id)
        if reply is None:
            failures.append(ValueError(f"client {node_id} did not answer"))
        elif reply.has_error():
            failures.append(ValueError(f"client {node_id} failed: {reply.error.reason}"))
        else:
            answer: Any = (
                compat.recorddict_to_fitres(reply.content, keep_input=False)
                if kind == MessageType.TRAIN
                else compat.recorddict_to_evaluateres(reply.content)
            )
            good = answer.status.code == Code.OK
            (results if good else failures).append((proxy, answer))
    return results, failures


# ------------------------------------------------------------------ what it does not report


def _reported(watch: RoundWatch, kind: str) -> Callable[..., Callable[..., None]]:
    def wrapper(plain: Callable[..., None]) -> Callable[..., None]:
        def add(history: History, server_round: int, *given: Any, **named: Any) -> None:
            plain(history, server_round, *given, **named)
            (value,) = (*given, *named.values())
            metrics = value if isinstance(value, Mapping) else {"loss": value}
            watch.aggregated(kind, server_round, metrics)

        return add

    return wrapper


def _params_of_server(seen: OlderApi) -> Callable[..., Callable[..., Any]]:
    def wrapper(plain: Callable[..., Any]) -> Callable[..., Any]:
        def fit(server: Server, *given: Any, **named: Any) -> Any:
            result = plain(server, *given, **named)
            if server.parameters.tensors:
                seen.arrays = compat.parameters_to_arrayrecord(server.parameters, keep_input=True)
            return result

        return fit

    return wrapper


def _params_of_workflow(seen: OlderApi) -> Callable[..., Callable[..., Any]]:
    def wrapper(plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(workflow: DefaultWorkflow, grid: Any, context: Context) -> None:
            plain(workflow, grid, context)
            seen.arrays = context.state.array_records.get(PARAMS_RECORD)

        return call

    return wrapper


def _watched_stage(seen: OlderApi, stage: str) -> Callable[..., Callable[..., bool]]:
    def wrapper(plain: Callable[..., bool]) -> Callable[..., bool]:
        def run(workflow: Any, grid: Any, context: Context, state: _State) -> bool:
            done = plain(workflow, grid, context, state)
            if not done:
                seen.halted.append(_halted(stage, workflow, state))
            elif stage == STAGES[-1]:
                seen.sums += 1
            return done

        return run

    return wrapper


def _halted(stage: str, workflow: SecAggPlusWorkflow, state: _State) -> str:
    """Return why a secure sum stopped: how many clients it needs, and how many answered."""
    shares = state.num_shares or workflow.num_shares
    wanted = max(2, state.threshold)
    answered = len(state.active_node_ids)
    return (
        f"SecAgg+ stopped in its stage {stage.replace('_', ' ')!r}: with num_shares = {shares} "
        f"and reconstruction_threshold = {workflow.reconstruction_threshold} it wants {wanted} "
        f"clients, and {answered} answered"
    )
