"""Log-ins with a password, hashed with Argon2id, beside clients that only ask whether the node is there (PINGREQ).

What others notice of them stands beside nothing; beside as many connects without a password, each of which is a commit,
too; and beside these with a process that only computes, with the lowest priority, as hashing does."""

import os
import subprocess
import sys
from contextlib import contextmanager
from statistics import median

from processes import free_ports
from systems import Quorumq

ROUNDS = 5
CLIENTS = 8
PINGERS = 50


class Open(Quorumq):
    """One node with another listener, where nobody is asked for a password."""

    def __init__(self, options):
        super().__init__(options, 1)
        self.open = free_ports(1)
        listener = f'{{ name = "open", address = "127.0.0.1:{self.open[0]}", authentication = ["anonymous"] }}'
        self.commands[0] += ["--set", f"listeners=[{listener}]"]

    def without_passwords(self, *arguments):
        known, self.mqtt = self.mqtt, self.open
        try:
            return self.bench(*arguments)
        finally:
            self.mqtt = known


@contextmanager
def computing():
    """A process that keeps one processor busy, below all others."""
    endless = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=lambda: os.nice(19))
    try:
        yield
    finally:
        endless.kill()
        endless.wait()


def log_in_figures(options, table):
    rounds = []
    with Open(options) as ours:
        password = ours.directory / "password"
        password.write_text("correct horse battery staple\n")
        add = [options.bin, "user", "--http", f"127.0.0.1:{ours.http[0]}", "add", "bench"]
        subprocess.run(add, input=password.read_text(), text=True, check=True, capture_output=True)
        for _ in range(ROUNDS):
            common = ["connect", "-C", CLIENTS, "--pingers", PINGERS, "-d", options.seconds]
            hashed = by_mode(ours.bench(*common, "--username", "bench", "--password-file", password))
            rate = round(hashed["connect"]["per_second"])
            without = [*common, "--connects", rate]
            plain = by_mode(ours.without_passwords(*without))
            with computing():
                computed = by_mode(ours.without_passwords(*without))
            beside = {"plain": plain["pings-beside"], "computed": computed["pings-beside"]}
            rounds.append(hashed | beside)
    middle = lambda mode, *path: median(value(found[mode], path) for found in rounds)
    table.absolute(f"log-ins/s by password (Argon2id), C = {CLIENTS}", middle("connect", "per_second"), "/s")
    table.absolute("  CPU for one", middle("connect", "server_cpu_us"), "µs")
    for share in ("p50", "p99", "max"):
        beside = middle("pings-beside", "latency_us", share)
        for name, mode in (("none", "pings-alone"), ("no password", "plain"), ("none, computing", "computed")):
            other = middle(mode, "latency_us", share)
            table.add(f"  PINGRESP of {PINGERS} others meanwhile, {share}", beside, name, other, "µs", None, True)


def by_mode(found):
    return {run["mode"]: run for run in found}


def value(found, path):
    for key in path:
        found = found[key]
    return found
