"""Longest gap of acknowledged SETs around an end of the leader, beside etcd."""

import signal
import statistics
import threading
import time

from processes import say
from systems import Etcd, Quorumq


def gaps_of(system, load, how, times):
    """Longest gap of acknowledged writes around each end of the leader, which is started again each time."""
    gaps = []
    for _ in range(times):
        result = []
        thread = threading.Thread(target=lambda: result.extend(load()))
        thread.start()
        time.sleep(2.5)
        leader = system.leader()
        if leader is not None:
            system.end(leader, how)
        thread.join()
        if leader is not None:
            system.start(leader)
            system.ready()
        if leader is not None and result:
            gaps.append(result[0]["longest_gap_ms"])
            say(f"{system.name} {how.name}: {gaps[-1]:.0f} ms")
    return gaps


def failover_figures(options, table):
    found = {}
    for how, times in ((signal.SIGKILL, options.kills), (signal.SIGTERM, max(1, options.kills // 2))):
        with Quorumq(options, 3) as ours:
            load = lambda: ours.bench("failover", "-C", 16, "-w", 1, "-d", 5)
            found["quorumq", how] = gaps_of(ours, load, how, times)
        if options.etcd:
            with Etcd(options) as peer:
                found["etcd", how] = gaps_of(peer, lambda: peer.bench("failover", "16", 6), how, times)
    for how in (signal.SIGKILL, signal.SIGTERM):
        ours, theirs = found.get(("quorumq", how)), found.get(("etcd", how))
        if not ours:
            continue
        name = "kill -9" if how == signal.SIGKILL else "SIGTERM"
        median, worst = statistics.median(ours), max(ours)
        goal = 1 if how == signal.SIGTERM else None
        table.add(f"gap after {name} of the leader, median of {len(ours)}", median, "etcd",
                  theirs and statistics.median(theirs), "ms", goal, True)
        table.add(f"gap after {name} of the leader, longest", worst, "etcd", theirs and max(theirs), "ms", None, True)
        if how == signal.SIGKILL:
            table.absolute("  median", median, "ms", 700)
            table.absolute("  longest", worst, "ms", 2000)
