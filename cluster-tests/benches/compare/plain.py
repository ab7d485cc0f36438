"""One node as a plain broker, MQTT 3.1.1 for all, beside Mosquitto and rumqttd."""

from side_by_side import measure, plain_brokers, values

# Case, arguments, and the goal: whose figure, and how many times it.
CASES = [
    ("QoS 0, 8 → 8", ["-q", 0], ("rumqttd", 1)),
    ("QoS 1, 8 → 8, window 16", ["-q", 1], ("rumqttd", 1)),
    ("QoS 2, 8 → 8, window 16", ["-q", 2], ("rumqttd", 1)),
    ("QoS 0, fan-out 1 → 200", ["-q", 0, "-t", "fan-out", "-P", 1, "-S", 200], ("mosquitto", 8)),
    ("QoS 1, fan-out 1 → 200", ["-q", 1, "-t", "fan-out", "-P", 1, "-S", 200], ("mosquitto", 8)),
    ("QoS 0, fan-out 1 → 1,000", ["-q", 0, "-t", "fan-out", "-P", 1, "-S", 1000], ("mosquitto", 8)),
    ("QoS 0, fan-in 50 → 1", ["-q", 0, "-t", "fan-in", "-P", 50, "-S", 1], None),
]


def plain_figures(options, table):
    systems = plain_brokers(options)
    common = ["--protocol", "3.1.1", "-d", options.seconds]

    def rows(figure, found, *path, unit, goal=None, at_most=False):
        ours, peers = values(found, *path)
        for peer, theirs in (peers or {"": None}).items():
            against = goal[1] if goal and goal[0] == peer else None
            table.add(figure, ours, peer, theirs, unit, against, at_most)

    for case, arguments, goal in CASES:
        found = measure(systems, ["mqtt", *arguments, *common])
        rows(f"messages/s, {case}", found, "per_second", unit="/s", goal=goal)
        rows("  CPU per message", found, "server_cpu_us", unit="µs", at_most=True)
    found = measure(systems, ["connect", *common])
    rows("connects/s", found, "per_second", unit="/s", goal=("mosquitto", 0.7))
    found = measure(systems, ["idle", *common, "-N", options.idle, "--settle", 3])
    rows(f"memory per idle connection ({options.idle})", found, "bytes_per_connection", unit="bytes", at_most=True)
    table.absolute("  memory per idle connection", values(found, "bytes_per_connection")[0], "bytes", 4096)
