"""Durable sessions on three nodes (MQTT 3.1.1, clean session 0), beside RabbitMQ's quorum queues and NATS with R3."""

from nats import Nats
from processes import say
from rabbitmq import RabbitMq
from side_by_side import OURS, measure, values
from systems import Quorumq

# NATS lets subscriptions time out when hundreds are made at once.
PEERS_OPENING = 16


def clusters(options, qos=1):
    """Three nodes of each system that is there and has what the case needs, by name."""
    systems = {OURS: lambda: Quorumq(options, 3)}
    if options.rabbitmq:
        # RabbitMQ answers QoS 2 as if it were QoS 1.
        systems["rabbitmq" if qos < 2 else "rabbitmq (QoS 1)"] = lambda: RabbitMq(options)
    if options.nats and (qos < 2 or Nats.has_qos_2(options)):
        systems["nats"] = lambda: Nats(options)
        if Nats.can_sync(options):
            systems["nats, fsync"] = lambda: Nats(options, synced=True)
    return systems


def session_figures(options, table):
    if options.nats and not Nats.has_qos_2(options):
        say("nats: no QoS 2 before 2.10, left out there")
    if options.nats and not Nats.can_sync(options):
        say("nats: no `sync_interval` before 2.10: only without fsync")
    flow_figures(options, table)
    connect_figures(options, table)
    backlog_figures(options, table)


def flow(options, qos, *arguments):
    """Publishers to durable subscribers, on each system."""
    def command(name):
        opening = [] if name == OURS else ["--opening", PEERS_OPENING]
        common = ["--durable", "--protocol", "3.1.1", "-q", qos, "-d", options.seconds]
        return ["mqtt", *common, *arguments, *opening]

    return measure(clusters(options, qos), command)


def flow_figures(options, table):
    for qos, goal in ((1, 5), (2, 3)):
        found = flow(options, qos)
        table.beside(f"QoS {qos} to durable sessions, 8 → 8, window 16", *values(found, "per_second"), "/s", goal)
        details(table, found)
    found = flow(options, 1, "-P", 1, "-S", 1, "-W", 1)
    latency = lambda share: values(found, "latency_us", share)
    table.beside("QoS 1, 1 → 1, window 1: p50 end to end", *latency("p50"), "µs", 1, at_most=True)
    table.beside("  p99", *latency("p99"), "µs", at_most=True)
    found = flow(options, 1, "-t", "fan-out", "-P", 1, "-S", 1000)
    table.beside("QoS 1, fan-out 1 → 1,000: deliveries", *values(found, "per_second"), "/s")
    details(table, found)
    found = flow(options, 1, "-t", "fan-in", "-P", 50, "-S", 1, "--lag", 100)
    table.beside("QoS 1, fan-in 50 → 1", *values(found, "per_second"), "/s")
    details(table, found)


def details(table, found):
    table.beside("  CPU of all nodes for one", *values(found, "server_cpu_us"), "µs", at_most=True)
    missing = {name: result["missing"] for name, result in found.items() if result["missing"]}
    if missing:
        say(f"deliveries that did not come: {missing}")


def connect_figures(options, table):
    found = measure(clusters(options), ["connect", "--durable", "--protocol", "3.1.1", "-d", options.seconds])
    ours, peers = values(found, "per_second")
    for peer, theirs in (peers or {"": None}).items():
        goal = 20 if peer == "nats" else None
        table.add("connects/s, durable with a subscription", ours, peer, theirs, "/s", goal)


def backlog_figures(options, table):
    """Filling and draining one session's queue, with the live rate into one subscriber and the memory next to it."""
    ours = {OURS: lambda: Quorumq(options, 3)}
    backlog = lambda messages: ["backlog", "--protocol", "3.1.1", "-N", messages]
    live = measure(ours, [
        "mqtt", "--durable", "--protocol", "3.1.1", "-q", 1, "-P", 8, "-S", 1, "-W", 64, "-d", options.seconds,
    ])
    found = measure(
        clusters(options), lambda name: backlog(options.backlog if name == OURS else options.peer_backlog)
    )
    drained, peers = values(found, "per_second")
    table.add(f"backlog of {options.backlog:,} drained by one client", drained, "own live QoS 1",
              values(live, "per_second")[0], "/s", 0.5)
    if peers:
        table.beside(f"  peers: of {options.peer_backlog:,}", drained, peers, "/s")
    table.beside("  filled", *values(found, "filled_per_second"), "/s")
    memory = lambda run, field: values(run, f"resident_{field}bytes")[0]
    for moment, field in (("empty", "empty_"), ("full", "filled_"), ("drained", "")):
        table.absolute(f"  memory of all nodes, {moment}", memory(found, field), "bytes")
    twice = measure(ours, backlog(2 * options.backlog))
    table.add("  at most, with a backlog of twice that", memory(twice, "peak_"), "half of it", memory(found, "peak_"),
              "bytes", 1.25, at_most=True)
