"""What clients that train adapters send over gRPC, byte by byte: never their base model."""

from __future__ import annotations

from pathlib import Path

import pytest
from free_ports import free_port
from safetensors.numpy import load, load_file

from meadow.transport import fleet_pb2 as pb

from .processes import Federation
from .recording_proxy import RecordingProxy, Seen

pytestmark = pytest.mark.fleet

TASK = Path(__file__).parents[1] / "simulations" / "apps" / "lora.py"
CLIENTS, ROUNDS = 2, 2
RANK = 512
"""The adapters are too large for a message: they are uploaded."""
WORDS = 1 << 16
BASE_BYTES = WORDS * 16 * 4
"""Of the embedding, which is nearly all of the base."""
SETTINGS = f"""
[run]
rounds = {ROUNDS}
min_clients = {CLIENTS}
[strategy]
name = "lora"
[training]
epochs = 1
batch_size = 30
[simulation]
clients = {CLIENTS}
"""


def names_sent(seen: Seen) -> set[str]:
    """Return the names of all tensors in an agent's answers, and in the files that it sent."""
    found = {
        info.name
        for reply in seen.replies
        for record in reply.envelope.records
        for info in record.arrays.infos
    }
    return found.union(*(load(bytes(file)) for file in seen.files.values()))


def test_the_base_model_is_never_sent(tmp_path: Path) -> None:
    """All that an agent sends in a run, as a proxy in front of the server has read it: its answers hold the
    adapters, and its bytes are those of the adapters and 64 KB for everything else, where the base has 4 MB."""
    pytest.importorskip("peft")
    app = tmp_path / "adapters"
    app.mkdir()
    text = TASK.read_text().replace("nn.Embedding(16, 16)", f"nn.Embedding({WORDS}, 16)")
    (app / "task.py").write_text(text.replace("r=4,", f"r={RANK},"))
    (app / "meadow.toml").write_text(SETTINGS)
    made = Federation(tmp_path, app)
    proxy = None
    try:
        made.start_server()
        port = free_port()
        for index in range(CLIENTS):
            made.enroll(index)
            file = made.client_dir(index) / "client.toml"
            file.write_text(f'{file.read_text()}\n[server]\naddresses = ["localhost:{port}"]\n')
        folders = [made.client_dir(index) for index in range(CLIENTS)]
        proxy = RecordingProxy(made.server_dir, folders, port=port, fleet_port=made.fleet_port)
        proxy.start()
        made.start_clients(CLIENTS)
        run = made.submit()
        assert made.wait_for_end(run)["status"] == "finished", made.rounds(run)
        adapters = load_file(made.run_dir(run) / "model.safetensors")
        size = sum(values.nbytes for values in adapters.values())
        for seen in proxy.seen.values():
            assert names_sent(seen) == set(adapters)
            assert seen.files and not seen.other_calls
            assert ROUNDS * size < seen.sent_bytes < ROUNDS * size + (64 << 10)
            assert seen.sent_bytes < BASE_BYTES / 4, "not once in the run"
        fetched = sum(row["bytes_sent"] for row in made.rounds(run))
        # to train, and to evaluate
        assert fetched < 2 * ROUNDS * CLIENTS * (size + (16 << 10))
    finally:
        made.close()
        if proxy is not None:
            proxy.stop()


def test_what_the_proxy_counts() -> None:
    """The counter of this test sees the bytes of messages and of uploads."""
    seen = Seen()
    hello = pb.AgentMessage(hello=pb.Hello(version="1")).SerializeToString()
    seen.note_message(hello)
    opened = pb.UploadOpen(instruction_id="1", blob=pb.Blob(id="a", size_bytes=3))
    opening = pb.UploadMessage(open=opened).SerializeToString()
    file = seen.note_upload(opening, None)
    chunk = pb.UploadMessage(chunk=pb.Chunk(offset=0, data=b"abc")).SerializeToString()
    assert bytes(seen.note_upload(chunk, file)) == b"abc"
    assert seen.sent_bytes == len(hello) + len(opening) + len(chunk)
