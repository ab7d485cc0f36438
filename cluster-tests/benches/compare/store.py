"""SET and GET on three nodes beside etcd; SET and GET on one node."""

from processes import say
from systems import Etcd, Quorumq

CLIENTS = [1, 16, 64, 256]


def store_figures(options, table):
    clients = ",".join(map(str, CLIENTS))
    with Quorumq(options, 3) as ours:
        sets = ours.bench("kv-set", "-C", clients, "-d", options.seconds)
        gets = ours.bench("kv-get", "-C", clients, "-d", options.seconds)
    their_sets = their_gets = [None] * len(CLIENTS)
    if options.etcd:
        with Etcd(options) as peer:
            their_sets = peer.bench("set", clients, options.seconds)
            their_gets = peer.bench("get", clients, options.seconds)
    for kind, our, their in (("SET", sets, their_sets), ("GET", gets, their_gets)):
        for count, mine, other in zip(CLIENTS, our, their):
            if mine["errors"]:
                say(f"{kind} C={count}: {mine['errors']} errors")
            goal = 5 if count >= 64 and (kind == "SET" or count == 64) else None
            table.add(f"{kind}/s, 3 nodes, 256 B, C = {count}", mine["per_second"], "etcd",
                      other and other["per_second"], "/s", goal)
            table.add(f"{kind} p50, C = {count}", mine["latency_us"]["p50"], "etcd",
                      other and other["latency_us"]["p50"], "µs", 1 if count == 1 and kind == "SET" else None, True)
            table.add(f"{kind} p99, C = {count}", mine["latency_us"]["p99"], "etcd",
                      other and other["latency_us"]["p99"], "µs", None, True)
            table.add(f"CPU of all nodes per {kind}, C = {count}", mine.get("server_cpu_us"), "etcd",
                      other and other["server_cpu_us"], "µs", None, True)
    with Quorumq(options, 1) as ours:
        for kind in ("set", "get"):
            for found in ours.bench(f"kv-{kind}", "-C", clients, "-d", options.seconds):
                table.add(f"{kind.upper()}/s, 1 node, C = {found['clients']}", found["per_second"], "", None, "/s")
