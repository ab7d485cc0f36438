"""SET for minutes over millions of keys, beside a short run over few, on three nodes and on etcd.

A short run measures the log. A long one over many keys also shows what the state costs: compaction that falls behind,
snapshots, and the purge of the log. It must keep four fifths of the short run's rate, and no SET may wait long.
"""

from systems import Etcd, Quorumq

CLIENTS = 256
VALUE_BYTES = 512
FEW_KEYS = 40
MANY_KEYS = 7_813
LONGEST_MS = 250


def sustained_figures(options, table):
    with Quorumq(options, 3) as ours:
        (short,) = ours.bench("kv-set", "-C", CLIENTS, "--value-bytes", VALUE_BYTES, "--keys", FEW_KEYS,
                              "-d", options.seconds)
        (long,) = ours.bench("kv-set", "-C", CLIENTS, "--value-bytes", VALUE_BYTES, "--keys", MANY_KEYS,
                             "-d", options.sustained)
    their_short = their_long = None
    if options.etcd:
        with Etcd(options) as peer:
            (their_short,) = peer.bench("set", CLIENTS, options.seconds, VALUE_BYTES, FEW_KEYS)
            (their_long,) = peer.bench("set", CLIENTS, options.sustained, VALUE_BYTES, MANY_KEYS)
    keys = CLIENTS * MANY_KEYS
    for name, mine, other in ((f"{CLIENTS * FEW_KEYS:,} keys, {options.seconds:g} s", short, their_short),
                              (f"{keys:,} keys, {options.sustained:g} s", long, their_long)):
        table.add(f"SET/s, 3 nodes, {VALUE_BYTES} B, C = {CLIENTS}, {name}", mine["per_second"], "etcd",
                  other and other["per_second"], "/s")
        for quantile in ("p99", "max"):
            table.add(f"SET {quantile}, {name}", mine["latency_us"][quantile], "etcd",
                      other and other["latency_us"][quantile], "µs", None, True)
    table.add(f"share of the short run's rate that {options.sustained:g} s keep (goal 0.8)",
              round(long["per_second"] / max(short["per_second"], 1), 2), "etcd",
              their_long and round(their_long["per_second"] / max(their_short["per_second"], 1), 2), "")
    table.add(f"longest SET in {options.sustained:g} s (goal below {LONGEST_MS} ms)",
              round(long["latency_us"]["max"] / 1e3, 1), "etcd",
              their_long and round(their_long["latency_us"]["max"] / 1e3, 1), "ms", None, True)
