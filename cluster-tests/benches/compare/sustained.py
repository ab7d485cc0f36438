"""SET for minutes over millions of keys, beside a short run over few, on three nodes and on etcd.

A short run measures the log. A long one over many keys also shows what the state costs: compaction that falls behind,
snapshots, and the purge of the log. It must keep four fifths of the short run's rate, and no SET may wait long. Then the
nodes are started again, with nothing in memory, and go on. A second short run, on nodes of its own, shows how much the
speed of the machine has changed meanwhile.
"""

from systems import Etcd, Quorumq

CLIENTS = 256
VALUE_BYTES = 512
FEW_KEYS = 40
MANY_KEYS = 7_813
LONGEST_MS = 250


def runs(system_of, bench, options):
    """The short run, the long one, the same after a restart, and the short run again."""
    with system_of() as system:
        found = [bench(system, options.seconds, FEW_KEYS), bench(system, options.sustained, MANY_KEYS)]
        for key in system.processes:
            system.end(key)
        system.start_all()
        system.ready()
        found.append(bench(system, options.seconds, MANY_KEYS))
    with system_of() as system:
        return [*found, bench(system, options.seconds, FEW_KEYS)]


def sustained_figures(options, table):
    def ours(system, seconds, keys):
        return system.bench("kv-set", "-C", CLIENTS, "--value-bytes", VALUE_BYTES, "--keys", keys, "-d", seconds)[0]

    def theirs(system, seconds, keys):
        return system.bench("set", CLIENTS, seconds, VALUE_BYTES, keys)[0]

    found = runs(lambda: Quorumq(options, 3), ours, options)
    peer = runs(lambda: Etcd(options), theirs, options) if options.etcd else [None] * 4
    few = f"{CLIENTS * FEW_KEYS:,} keys, {options.seconds:g} s"
    many = f"{CLIENTS * MANY_KEYS:,} keys"
    names = (few, f"{many}, {options.sustained:g} s", f"{many}, {options.seconds:g} s after a restart", f"{few}, again")
    for name, mine, other in zip(names, found, peer):
        table.add(f"SET/s, 3 nodes, {VALUE_BYTES} B, C = {CLIENTS}, {name}", mine["per_second"], "etcd",
                  other and other["per_second"], "/s")
        for quantile in ("p99", "max"):
            table.add(f"SET {quantile}, {name}", mine["latency_us"][quantile], "etcd",
                      other and other["latency_us"][quantile], "µs", None, True)
    for short, goal in ((0, " (goal 0.8)"), (3, ", again")):
        mine, other = ([run and run["per_second"] for run in (of[1], of[short])] for of in (found, peer))
        table.add(f"share of the short run's rate that {options.sustained:g} s keep{goal}",
                  round(mine[0] / max(mine[1], 1), 2), "etcd", other[0] and round(other[0] / max(other[1], 1), 2), "")
    longest = [run and round(run["latency_us"]["max"] / 1e3, 1) for run in (found[1], peer[1])]
    table.add(f"longest SET in {options.sustained:g} s (goal below {LONGEST_MS} ms)", longest[0], "etcd", longest[1],
              "ms", None, True)
