"""Twins and events on three nodes, beside the state store of the same nodes in the same run."""

import base64
import secrets

from disk import size
from processes import free_ports, say
from systems import Quorumq

# Twin work, numbers of clients, the state store's run that it is held against, its value, and the goal.
WORK = [
    ("patch", [64], "kv-set", "reported patches/s", 0.5),
    ("get", [64], "kv-get", "twin GET/s over MQTT", 0.5),
    ("http-get", [64], "kv-get", "twin GET/s over HTTP", 0.5),
    ("desired", [1, 64], "kv-set", "desired changes/s", None),
    ("create", [64], "kv-set", "registrations/s", None),
]


class Hub(Quorumq):
    """Three nodes with a hub, without TLS."""

    def __init__(self, options):
        super().__init__(options, 3)
        self.hub = free_ports(3)
        key = base64.b64encode(secrets.token_bytes(32)).decode()
        self.key, policies = self.directory / "owner.key", self.directory / "policies"
        self.key.write_text(key + "\n")
        policies.write_text(f"iothubowner:RegistryRead,RegistryWrite,ServiceConnect,DeviceConnect:{key}\n")
        for file in (self.key, policies):
            file.chmod(0o600)
        for i, port in enumerate(self.hub):
            for setting in ("hub.host_names=localhost", f"hub.https_listen=127.0.0.1:{port}",
                            f"hub.policies_file={policies}", "hub.allow_plaintext=true"):
                self.commands[i] += ["--set", setting]

    def twin(self, work, clients, seconds):
        hubs = ",".join(f"127.0.0.1:{port}" for port in self.hub)
        return self.bench("twin", work, "-C", clients, "-d", seconds, "--hub", hubs, "--policy-key-file", self.key)


    def fleet(self, devices, seconds):
        hubs = ",".join(f"127.0.0.1:{port}" for port in self.hub)
        found = self.bench("fleet", "-N", devices, "-d", seconds, "--hub", hubs, "--policy-key-file", self.key)
        return {run["mode"].removeprefix("fleet-"): run for run in found}


def fleet_figures(options, table):
    """Many twins that nobody is connected to: queries, and what they take in memory and on disk, on each node."""
    devices = options.fleet
    with Hub(options) as ours:
        found = ours.fleet(devices, options.seconds)
        # A node that is stopped cleanly has written its whole state to files.
        for node in ours.commands:
            ours.end(node)
        disk = sum(size(ours.data(node) / "state") for node in ours.commands) / len(ours.commands)
    for name, run in found.items():
        if run["errors"]:
            say(f"fleet-{name}: {run['errors']} errors")
    for name, figure in (("create", "registrations/s, C = 256"), ("patch", "patches of a back end/s, C = 256")):
        table.absolute(f"{figure}, {devices:,} devices", found[name]["per_second"], "/s")
    for name, figure in (("filter", "ids of one site"), ("filter-all", "twins of one site"), ("count", "COUNT()")):
        rows = found[name]["rows_per_second"]
        table.put(f"  rows/s of a query: {figure}", rows, "", None, "/s", None, "≥ 200,000", rows >= 200_000)
    table.absolute("  query of one deviceId, p50", found["look-up"]["latency_us"]["p50"], "µs", 5_000)
    table.absolute("  memory of an idle twin", found["patch"].get("bytes_in_memory_per_twin"), "bytes")
    table.absolute("  disk of an idle twin", disk / devices, "bytes")
    table.absolute("  memory of an observing connection", found["observe"].get("bytes_per_connection"), "bytes")


def hub_figures(options, table):
    seconds = options.seconds
    with Hub(options) as ours:
        for work, counts, against, figure, goal in WORK:
            for count in counts:
                store, found = in_turn(ours, work, count, against, seconds)
                if found["errors"]:
                    say(f"{work} C={count}: {found['errors']} errors")
                peer = against.removeprefix("kv-").upper()
                table.add(f"{figure}, C = {count}", found["per_second"], peer, store["per_second"], "/s", goal)
                for share in ("p50", "p99"):
                    mine, other = (run.get("latency_us", {}).get(share) for run in (found, store))
                    limit = 1.5 if work == "desired" and share == "p50" else None
                    table.add(f"  {share}", mine, peer, other, "µs", limit, True)
                table.add("  CPU of all nodes for one", found.get("server_cpu_us"), peer,
                          store.get("server_cpu_us"), "µs", None, True)
        event_figures(ours, seconds, table)


def in_turn(ours, work, count, against, seconds):
    """A run of the state store and one of the hub. One client waits for the disk alone, and what else uses the disk
    changes within seconds: then both run in turn, and each shows the run whose p50 is in the middle."""
    rounds = 5 if count == 1 else 1
    stores, found = [], []
    for _ in range(rounds):
        stores += ours.bench(against, "-C", count, "-d", max(2, seconds / rounds))
        found += ours.twin(work, count, max(2, seconds / rounds))
    return tuple(sorted(runs, key=lambda run: run["latency_us"]["p50"])[rounds // 2] for runs in (stores, found))


def event_figures(ours, seconds, table):
    """Connects with and without events, and their delivery to a webhook of the load generator."""
    found = ours.bench("events", "-d", seconds, "--http", f"127.0.0.1:{ours.http[0]}")
    found = {run["mode"]: run for run in found}
    without, recorded = found["events-off"], found["events-recorded"]
    table.add("connects/s, events recorded", recorded["per_second"], "without", without["per_second"], "/s", 0.9)
    table.add("  CPU of all nodes for one", recorded.get("server_cpu_us"), "without",
              without.get("server_cpu_us"), "µs", None, True)
    steady, beside = found["events-recorded-steady"], found["events-off-steady"]
    table.add("  at a steady rate, events recorded", steady["per_second"], "without", beside["per_second"], "/s", 0.9)
    table.add("  time until the CONNACK, p99", steady["latency_us"]["p99"], "without", beside["latency_us"]["p99"],
              "µs", None, True)
    for mode, name in (("batch", "in batches"), ("single", "singly")):
        table.absolute(f"events/s to a webhook, {name}", found[f"events-{mode}"]["per_second"], "/s")
    lag = found["events-lag"]
    table.absolute(f"lag at {lag['per_second']:,.0f} events/s, p99", lag.get("latency_us", {}).get("p99"), "µs")


def outage_figures(options, table):
    """As many events as come in a day while their endpoint is away, and how long it takes to drain them."""
    with Quorumq(options, 3) as ours:
        found = ours.bench("events-outage", "-N", options.outage, "--http", f"127.0.0.1:{ours.http[0]}")
    recorded, drained = found
    table.absolute(f"{recorded['operations']:,} events recorded without an endpoint", recorded["per_second"], "/s")
    table.absolute("  bytes in the outbox", recorded["kept"].get("quorumq_events_outbox_bytes"), "bytes")
    table.absolute("  until the first one when it is back", drained["seconds_until_first"], "s", 75)
    table.absolute("  drained in", drained["seconds"], "s")
    table.absolute("  events/s", drained["per_second"], "/s")


def death_figures(options, table):
    """A node dies with its clients: until all of them are told of, and what clients of other nodes notice."""
    with Quorumq(options, 3) as ours:
        leader = ours.leader() or 0
        victim = (leader + 1) % 3
        stays = next(i for i in range(3) if i != victim)
        found = ours.bench("events-death", "-N", options.death, "-d", options.seconds,
                           "--http", f"127.0.0.1:{ours.http[stays]}", "--victim", f"127.0.0.1:{ours.mqtt[victim]}",
                           "--kill", ours.processes[victim].pid)
    before, during, told = found
    for share in ("p50", "p99", "max"):
        for name, run in (("before", before), ("during it", during)):
            table.absolute(f"PUBACK of clients of other nodes, {name}, {share}", run["latency_us"][share], "µs")
    table.absolute("  their connections lost", during["errors"], "", 0)
    table.absolute(f"{told['operations']:,} clients of a dead node: the first told of", told["seconds_until_first"], "s")
    table.absolute("  the last one", told["seconds_until_last"], "s")


def events_figures(options, table):
    with Quorumq(options, 3) as ours:
        event_figures(ours, options.seconds, table)
    outage_figures(options, table)
    death_figures(options, table)
