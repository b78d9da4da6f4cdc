"""One instruction for a cohort, seen as the messages that it stands for."""

from flwr.app import ConfigRecord, RecordDict

from meadow.strategies.rounds.broadcast import Broadcast


def test_messages_are_made_once() -> None:
    """Flower's grids number messages in one pass and send them in the next."""
    content = RecordDict({"config": ConfigRecord({"server-round": 1})})
    batch = Broadcast(content, "train", [7, 8, 9], group_id="1")
    first, second = list(batch), list(batch)
    assert [m.metadata.dst_node_id for m in first] == [7, 8, 9]
    assert all(one is other for one, other in zip(first, second, strict=True))
    assert batch[-1] is first[2]
    assert all(m.content is content for m in first)
