"""Log-ins with a password, hashed with Argon2id, beside clients that only ask whether the node is there (PINGREQ)."""

import subprocess
from statistics import median

from systems import Quorumq

ROUNDS = 5
CLIENTS = 8
PINGERS = 50


def log_in_figures(options, table):
    rounds = []
    with Quorumq(options, 1) as ours:
        password = ours.directory / "password"
        password.write_text("correct horse battery staple\n")
        add = [options.bin, "user", "--http", f"127.0.0.1:{ours.http[0]}", "add", "bench"]
        subprocess.run(add, input=password.read_text(), text=True, check=True, capture_output=True)
        for _ in range(ROUNDS):
            found = ours.bench("connect", "-C", CLIENTS, "--username", "bench", "--password-file", password,
                               "--pingers", PINGERS, "-d", options.seconds)
            rounds.append({run["mode"]: run for run in found})
    middle = lambda mode, *path: median(value(found[mode], path) for found in rounds)
    table.absolute(f"log-ins/s by password (Argon2id), C = {CLIENTS}", middle("connect", "per_second"), "/s")
    table.absolute("  CPU for one", middle("connect", "server_cpu_us"), "µs")
    for share in ("p50", "p99", "max"):
        alone, beside = (middle(mode, "latency_us", share) for mode in ("pings-alone", "pings-beside"))
        table.add(f"  PINGRESP of {PINGERS} others meanwhile, {share}", beside, "without", alone, "µs", None, True)


def value(found, path):
    for key in path:
        found = found[key]
    return found
