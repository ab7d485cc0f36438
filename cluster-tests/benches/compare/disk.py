"""What a publish to many durable sessions whose clients are away takes on disk."""

import re
import urllib.request

from processes import say
from side_by_side import OURS
from systems import Quorumq

SESSIONS = 1000
PUBLISHES = 1000
PAYLOAD_BYTES = 1024


def disk_figures(options, table):
    """Two clusters with the same sessions, one publish and many: the difference is what the publishes took.

    A node that is stopped cleanly has written its whole state to files, so their sizes are what is on disk, compressed
    as it is there; payloads are random and do not compress. What the log took comes from the nodes' own counters.
    """
    try:
        one, many = stored(options, 1), stored(options, PUBLISHES)
    except RuntimeError as error:
        return say(f"{OURS}: disk: {error}")
    state, log = ((after - before) / (PUBLISHES - 1) for before, after in zip(one, many))
    table.absolute(f"state of a publish of {PAYLOAD_BYTES} B to {SESSIONS:,} away", state, "bytes")
    table.absolute("  without one payload, per session", (state - PAYLOAD_BYTES) / SESSIONS, "bytes", 40)
    table.absolute("  log of such a publish", log, "bytes")


def stored(options, publishes):
    """Bytes of state on disk and bytes appended to the log, on average of three nodes."""
    with Quorumq(options, 3) as system:
        system.bench("backlog", "--no-drain", "-N", publishes, "-S", SESSIONS, "-p", PAYLOAD_BYTES)
        log = [counter(port, "quorumq_log_bytes_total") for port in system.http]
        for node in system.commands:
            system.end(node)
        state = [size(system.data(node) / "state") for node in system.commands]
    return sum(state) / len(state), sum(log) / len(log)


def counter(port, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return float(re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)[1])


def size(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
