"""TLS and WebSocket, one node and three, beside Mosquitto: handshakes, messages, memory of idle connections.

All systems have the same certificate, with a key on P-256. Messages go over all four transports of a system that was
started once, one right after the other: so the share that TLS leaves of the rate is one of the same processes.
"""

import os
import subprocess
from statistics import median

from processes import free_ports, say
from systems import Mosquitto, Quorumq

# Transport, and what the load generator gets for it.
TRANSPORTS = {"tcp": (False, False), "tls": (True, False), "ws": (False, True), "wss": (True, True)}
SHARE_OF_PLAIN = 0.6
IDLE_BYTES = 16 << 10
# Of each kind of run, in turn; each shows the median.
ROUNDS = 3


class Transports:
    """What both systems have: a port of each transport, and a certificate."""

    def certify(self):
        """Makes a CA and the certificate; where they are."""
        pki = self.directory / "pki"
        program = [self.options.bin, "certificates"]
        for arguments in (["ca"], ["node", "--id", "1", "--host", "127.0.0.1"]):
            subprocess.run([*program, *arguments, "--directory", pki], check=True, capture_output=True)
        self.ca = pki / "ca.pem"
        return pki / "node-1.pem", pki / "node-1.key"

    def over(self, transport, *arguments):
        """A run over this transport."""
        has_tls, is_web = TRANSPORTS[transport]
        plain, self.mqtt = self.mqtt, self.ports[transport]
        try:
            return self.bench(*arguments, *(["--ca-file", self.ca] if has_tls else []), *(["--ws"] if is_web else []))
        finally:
            self.mqtt = plain


class Encrypted(Transports, Quorumq):
    def __init__(self, options, nodes):
        super().__init__(options, nodes)
        certificate, key = self.certify()
        ports = free_ports(3 * nodes)
        self.ports = {"tcp": self.mqtt}
        for number, transport in enumerate(("tls", "ws", "wss")):
            self.ports[transport] = ports[number * nodes : (number + 1) * nodes]
        shown = f', certificates = [{{ certificate = "{certificate}", key = "{key}" }}]'
        for i in range(nodes):
            listeners = (
                f'{{ name = "{transport}", address = "127.0.0.1:{self.ports[transport][i]}", '
                f'transport = "{transport}"{shown if has_tls else ""} }}'
                for transport, (has_tls, _) in TRANSPORTS.items() if transport != "tcp"
            )
            self.commands[i] += ["--set", f"listeners=[{', '.join(listeners)}]"]


class EncryptedMosquitto(Transports, Mosquitto):
    def __init__(self, options):
        super().__init__(options)
        certificate, key = self.certify()
        ports = free_ports(3)
        self.ports = {"tcp": self.mqtt} | {name: [port] for name, port in zip(("tls", "ws", "wss"), ports)}
        lines = []
        for transport, (has_tls, is_web) in TRANSPORTS.items():
            if transport == "tcp":
                continue
            lines.append(f"listener {self.ports[transport][0]} 127.0.0.1")
            lines += ["protocol websockets"] if is_web else []
            lines += [f"certfile {certificate}", f"keyfile {key}"] if has_tls else []
        configuration = self.directory / "mosquitto.conf"
        # Started as root, it would become somebody who may not read the key.
        user = ["user root"] if os.getuid() == 0 else []
        configuration.write_text("\n".join([configuration.read_text(), *user, *lines, ""]))


def systems(options):
    made = {"quorumq": lambda: Encrypted(options, 1), "3 nodes": lambda: Encrypted(options, 3)}
    if options.mosquitto:
        made["mosquitto"] = lambda: EncryptedMosquitto(options)
    return made


def in_turn(made, runs, rounds=ROUNDS):
    """What each system found of each run, by the names of both: `runs` maps a name to value, transport and arguments."""
    found = {}
    for name, make in made.items():
        values = {run: [] for run in runs}
        try:
            with make() as system:
                for _ in range(rounds):
                    for run, (value, transport, *arguments) in runs.items():
                        values[run].append(system.over(transport, *arguments)[0][value])
        except RuntimeError as error:
            say(f"{name}: {error}")
        found |= {(name, run): median(of_rounds) for run, of_rounds in values.items() if of_rounds}
    return found


def rows(table, figure, found, run, goal=None, unit="/s", at_most=False):
    """One node and three, each beside Mosquitto; the goal is one node's."""
    theirs = found.get(("mosquitto", run))
    for name, title in (("quorumq", figure), ("3 nodes", f"  {figure}, 3 nodes")):
        ours = found.get((name, run))
        if ours is not None:
            table.add(title, ours, "mosquitto" if theirs else "", theirs, unit, goal if name == "quorumq" else None, at_most)


def share(table, found):
    """What TLS leaves of the rate without."""
    shares = {}
    for name in ("quorumq", "3 nodes", "mosquitto"):
        plain, over = (found.get((name, run)) for run in ("tcp", "tls"))
        shares[name] = round(over / plain, 2) if plain and over else None
    for name, title in (("quorumq", "  of the rate without TLS"), ("3 nodes", "  of the rate without TLS, 3 nodes")):
        if shares[name] is not None:
            met = shares[name] >= SHARE_OF_PLAIN if name == "quorumq" else None
            table.put(title, shares[name], "mosquitto", shares["mosquitto"], "", None,
                      f"≥ {SHARE_OF_PLAIN}" if name == "quorumq" else None, met)


def tls_figures(options, table):
    made, common = systems(options), ["--protocol", "3.1.1", "-d", options.seconds]
    found = in_turn(made, {
        f"{what}, {how}": ("per_second", "tls", "connect", "-C", 32, *flag, *only, *common)
        for what, only in (("handshakes", ["--handshakes"]), ("log-ins", []))
        for how, flag in (("full", ["--no-resumption"]), ("resumed", []))
    })
    for how in ("full", "resumed"):
        rows(table, f"TLS handshakes/s, {how}", found, f"handshakes, {how}", 1)
    # With Quorumq each is a commit, too.
    for how in ("full", "resumed"):
        rows(table, f"log-ins/s over TLS, {how}", found, f"log-ins, {how}")
    for qos in (0, 1):
        found = in_turn(made, {name: ("per_second", name, "mqtt", "-q", qos, *common) for name in TRANSPORTS})
        rows(table, f"QoS {qos}, 8 → 8, without TLS", found, "tcp")
        rows(table, f"QoS {qos}, 8 → 8, over TLS", found, "tls", 3)
        share(table, found)
        rows(table, f"QoS {qos}, 8 → 8, over WebSocket", found, "ws")
        rows(table, f"QoS {qos}, 8 → 8, over WebSocket and TLS", found, "wss")
    del made["3 nodes"]
    idle = ("bytes_per_connection", "tls", "idle", "-N", options.idle, "--settle", 3, "--opening", 64, *common)
    found = in_turn(made, {"idle": idle}, rounds=1)
    rows(table, f"memory per idle TLS connection ({options.idle})", found, "idle", unit="bytes", at_most=True)
    table.absolute("  memory per idle TLS connection", found.get(("quorumq", "idle")), "bytes", IDLE_BYTES)
