"""Processes on loopback that belong together: start, readiness, CPU time, end. Ends only what it started."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PORTS = (16_000, 32_000)


def say(text):
    print(text, file=sys.stderr, flush=True)


def free_ports(count):
    """Ports nobody listens on now, below those that the system gives to outgoing connections."""
    ports = {}
    while len(ports) < count:
        port = random.randrange(*PORTS)
        with contextlib.suppress(OSError):
            ports[port] = socket.socket()
            ports[port].bind(("127.0.0.1", port))
            continue
        ports.pop(port).close()
    for one in ports.values():
        one.close()
    return list(ports)


def listens(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
        return True
    return False


def http_ok(url):
    with contextlib.suppress(OSError):
        with urllib.request.urlopen(url, timeout=1) as answer:
            return answer.status == 200
    return False


def http_json(url):
    """What a URL answers, or nothing while it does not answer with JSON."""
    with contextlib.suppress(OSError, ValueError):
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)
    return None


def cpu_seconds(pids):
    """User and system time of processes; those that are gone count nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def run_json(command):
    found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if found.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {found.stderr.strip()}")
    return [json.loads(line) for line in found.stdout.splitlines()]


class System:
    """Processes that belong together, with their data in a directory of their own.

    A subclass fills `commands` (and `environments`, where a process needs more than this one's), and says in `ready`
    when the system can be measured.
    """

    def __init__(self, name, options):
        self.name = name
        self.options = options
        self.directory = Path(tempfile.mkdtemp(prefix=name.replace(" ", "-") + "-", dir=options.work))
        self.commands = {}
        self.environments = {}
        self.processes = {}

    def start(self, key):
        # A process group of its own (an interrupt is for this process), but no session of its own: Linux would give
        # each session the same share of the processors (sched(7), autogroup) instead of each thread.
        with open(self.directory / f"{key}.log", "ab") as log:
            self.processes[key] = subprocess.Popen(
                self.commands[key], stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0,
                env={**os.environ, **self.environments.get(key, {})},
            )

    def start_all(self):
        for key in self.commands:
            self.start(key)

    def pids(self):
        return [process.pid for process in self.processes.values() if process.poll() is None]

    def wait_for(self, what, condition, limit=90):
        """Waits until a condition holds; says what the processes logged last when it does not, or when one ended."""
        deadline = time.monotonic() + limit
        while not condition():
            ended = [key for key, process in self.processes.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                why = f"{ended} ended" if ended else f"not within {limit} s"
                raise RuntimeError(f"{self.name}: {what}: {why}\n{self.logs()}")
            time.sleep(0.02)

    def logs(self):
        """What the processes logged last."""
        return "\n".join(f"{log}:\n{tail(log)}" for log in sorted(self.directory.glob("*.log")))

    def end(self, key, how=signal.SIGTERM):
        process = self.processes[key]
        process.send_signal(how)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            say(f"{self.name} {key} does not end; killing it")
            process.kill()
            process.wait()

    def __enter__(self):
        try:
            self.start_all()
            self.ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for key in self.processes:
            if self.processes[key].poll() is None:
                self.processes[key].terminate()
        for key in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[key].wait(30)
            if self.processes[key].poll() is None:
                self.processes[key].kill()
                self.processes[key].wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class Broker(System):
    """A system that speaks MQTT on `mqtt`, a list of ports."""

    def bench(self, *arguments):
        """One run of the load generator; a list of what it found."""
        servers = ",".join(f"127.0.0.1:{port}" for port in self.mqtt)
        command = [self.options.bin, "bench", *map(str, arguments), "--server", servers, "-o", "json"]
        try:
            return run_json(command + [flag for pid in self.pids() for flag in ("--pid", str(pid))])
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{self.logs()}") from error

    def wait_for_client(self, port):
        """Waits until a port has taken a client."""
        client = [self.options.bin, "bench", "idle", "-N", "1", "--settle", "0", "--protocol", "3.1.1"]
        client += ["--server", f"127.0.0.1:{port}"]
        self.wait_for("a client", lambda: subprocess.run(client, capture_output=True).returncode == 0)


def tail(path, lines=8):
    return "\n".join("    " + line for line in path.read_text(errors="replace").splitlines()[-lines:])
