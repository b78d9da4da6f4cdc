"""Memory of the daemon under half messages: hostile connections, with a certificate and without.

python benchmarks/hostile.py [CONNECTIONS]
"""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from meadow.server.daemon import MESSAGE_BYTES_MAX
from meadow.transport.keys import KeyPair
from tests.faults.live_server import LiveServer
from tests.faults.raw_http2 import RawHttp2

DECLARED_BYTES = MESSAGE_BYTES_MAX - 2048
ENROL_BYTES = 60 << 10
STREAMS = 64
ATTACK_S = 30.0
AFTERWARDS_S = 3.0
PATHS = {
    "connect": "/meadow.v1.Fleet/Connect",
    "upload": "/meadow.v1.Fleet/Upload",
    "download": "/meadow.v1.Fleet/Download",
    "admin": "/meadow.v1.Admin/Status",
    "enrol": "/meadow.v1.Enrollment/Enroll",
}


def main(connections: int) -> None:
    """Print a line for each attack."""
    for name, path in PATHS.items():
        with (
            tempfile.TemporaryDirectory() as folder,
            closing(LiveServer(Path(folder) / "server")) as server,
        ):
            pair = None if name == "enrol" else server.enroll("mallory", Path(folder))
            address = server.enroll_address if name == "enrol" else server.fleet
            declared = ENROL_BYTES if name == "enrol" else DECLARED_BYTES
            idle = server.resident_bytes()
            peak = attack(server, address, pair, path, declared, connections)
            time.sleep(AFTERWARDS_S)
            after = server.resident_bytes()
            sizes = ", ".join(f"{size / 1e6:.0f} MB" for size in (idle, peak, after))
            print(f"{name}: {connections} connections; idle, peak, after: {sizes}", flush=True)


def attack(
    server: LiveServer, address: str, pair: KeyPair | None, path: str, declared: int, count: int
) -> int:
    """Begin messages on so many connections, end none, and return the daemon's peak."""
    held: list[RawHttp2] = []

    def hold(_: int) -> None:
        hostile = RawHttp2(address, pair)
        held.append(hostile)
        for stream in [hostile.open(path) for _ in range(STREAMS)]:
            hostile.begin(stream, declared, declared - 10, 0.2)

    peak, since_s = 0, time.monotonic()
    with ThreadPoolExecutor(count) as pool:
        sent = [pool.submit(hold, number) for number in range(count)]
        while not all(each.done() for each in sent) and time.monotonic() - since_s < ATTACK_S:
            peak = max(peak, server.resident_bytes())
            time.sleep(0.05)
        peak = max(peak, server.resident_bytes())
        for hostile in held:
            hostile.close()
    return peak


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
