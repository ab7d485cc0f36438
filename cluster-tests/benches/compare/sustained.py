"""SET for minutes over millions of keys, beside a short run over few, on three nodes and on etcd.

A short run measures the log. A long one over many keys also shows what the state costs: compaction that falls behind,
snapshots, and the purge of the log. It must keep four fifths of the short run's rate, and no SET may wait long. The short
run comes before and after it, because the speed of a machine changes within minutes: what counts is the mean of both.
"""

from statistics import mean

from systems import Etcd, Quorumq

CLIENTS = 256
VALUE_BYTES = 512
FEW_KEYS = 40
MANY_KEYS = 7_813
LONGEST_MS = 250


def shares(short_before, long, short_after):
    """Of the rate of each short run, and of the mean of both."""
    rates = [short_before["per_second"], short_after["per_second"]]
    return [round(long["per_second"] / max(rate, 1), 2) for rate in (*rates, mean(rates))]


def sustained_figures(options, table):
    def ours(seconds, keys):
        return system.bench("kv-set", "-C", CLIENTS, "--value-bytes", VALUE_BYTES, "--keys", keys, "-d", seconds)[0]

    def theirs(seconds, keys):
        return system.bench("set", CLIENTS, seconds, VALUE_BYTES, keys)[0]

    def runs(bench):
        return [bench(options.seconds, FEW_KEYS), bench(options.sustained, MANY_KEYS), bench(options.seconds, FEW_KEYS)]

    with Quorumq(options, 3) as system:
        found = runs(ours)
    peer = [None] * 3
    if options.etcd:
        with Etcd(options) as system:
            peer = runs(theirs)
    few = f"{CLIENTS * FEW_KEYS:,} keys, {options.seconds:g} s"
    many = f"{CLIENTS * MANY_KEYS:,} keys, {options.sustained:g} s"
    for name, mine, other in zip((f"{few}, before", many, f"{few}, after"), found, peer):
        table.add(f"SET/s, 3 nodes, {VALUE_BYTES} B, C = {CLIENTS}, {name}", mine["per_second"], "etcd",
                  other and other["per_second"], "/s")
        for quantile in ("p99", "max"):
            table.add(f"SET {quantile}, {name}", mine["latency_us"][quantile], "etcd",
                      other and other["latency_us"][quantile], "µs", None, True)
    their_shares = shares(*peer) if options.etcd else [None] * 3
    for of, mine, other in zip(("rate before", "rate after", "mean of both (goal 0.8)"), shares(*found), their_shares):
        table.add(f"share that {options.sustained:g} s keep of the short run's {of}", mine, "etcd", other, "")
    longest = [run and round(run["latency_us"]["max"] / 1e3, 1) for run in (found[1], peer[1])]
    table.add(f"longest SET in {options.sustained:g} s (goal below {LONGEST_MS} ms)", longest[0], "etcd", longest[1],
              "ms", None, True)
