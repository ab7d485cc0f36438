"""Quorumq and the peers that are one process or speak no MQTT."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from processes import Broker, System, cpu_seconds, free_ports, http_json, http_ok, listens, run_json


class Quorumq(Broker):
    def __init__(self, options, nodes):
        super().__init__(f"quorumq{nodes}", options)
        ports = free_ports(3 * nodes)
        self.mqtt, self.http, cluster = ports[:nodes], ports[nodes : 2 * nodes], ports[2 * nodes :]
        members = ",".join(f"{i + 1}=127.0.0.1:{port}" for i, port in enumerate(cluster))
        for i in range(nodes):
            self.commands[i] = [
                options.bin, "serve", "--node-id", str(i + 1), "--data-dir", str(self.data(i)),
                "--mqtt-listen", f"127.0.0.1:{self.mqtt[i]}", "--http-listen", f"127.0.0.1:{self.http[i]}",
                "--cluster-listen", f"127.0.0.1:{cluster[i]}", "--set", "log.level=warn",
                "--set", f"mqtt.queue_max_messages={4 * options.backlog}",
                "--set", f"mqtt.queue_max_bytes={1 << 40}",
            ] + (["--cluster-members", members] if nodes > 1 else [])

    def data(self, i):
        return self.directory / f"n{i}"

    def ready(self):
        for port in self.http:
            self.wait_for("readiness", lambda port=port: http_ok(f"http://127.0.0.1:{port}/readyz"))

    def leader(self):
        for port in self.http:
            leader = (http_json(f"http://127.0.0.1:{port}/v1/cluster/status") or {}).get("leader")
            if leader:
                return leader - 1
        return None


class Etcd(System):
    def __init__(self, options):
        super().__init__("etcd", options)
        ports = free_ports(6)
        self.client, self.peer = ports[:3], ports[3:]
        cluster = ",".join(f"e{i}=http://127.0.0.1:{port}" for i, port in enumerate(self.peer))
        for i in range(3):
            client, peer = f"http://127.0.0.1:{self.client[i]}", f"http://127.0.0.1:{self.peer[i]}"
            self.commands[i] = [
                "etcd", "--name", f"e{i}", "--data-dir", str(self.directory / f"n{i}"),
                "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", cluster, "--initial-cluster-state", "new", "--log-level", "error",
            ]
        self.load = options.peers / "etcd_load"

    @staticmethod
    def there(options):
        return all(shutil.which(name) for name in ("etcd", "etcdctl")) and (options.peers / "etcd_load").exists()

    def ready(self):
        for port in self.client:
            self.wait_for("health", lambda port=port: http_ok(f"http://127.0.0.1:{port}/health"))

    def leader(self):
        endpoints = ",".join(f"127.0.0.1:{port}" for port in self.client)
        found = subprocess.run(
            ["etcdctl", "--endpoints", endpoints, "endpoint", "status", "-w", "json"],
            capture_output=True, text=True, env={**os.environ, "ETCDCTL_API": "3"},
        )
        for line in json.loads(found.stdout or "[]"):
            if line["Status"]["header"]["member_id"] == line["Status"]["leader"]:
                return self.client.index(int(line["Endpoint"].rsplit(":", 1)[1]))
        return None

    def bench(self, kind, clients, seconds, *more):
        """One run per number of clients, with the CPU time of all nodes per operation, warm-up included in both."""
        endpoints = ",".join(f"127.0.0.1:{port}" for port in self.client)
        found = []
        for count in str(clients).split(","):
            before = cpu_seconds(self.pids())
            (run,) = run_json([str(self.load), kind, endpoints, count, str(seconds), *map(str, more)])
            spent, warm_up = cpu_seconds(self.pids()) - before, 3 if kind == "get" else 1
            whole = run["operations"] * (run["seconds"] + warm_up) / run["seconds"]
            run["server_cpu_us"] = round(spent * 1e6 / whole, 2) if whole else None
            found.append(run)
        return found


class Mosquitto(Broker):
    def __init__(self, options):
        super().__init__("mosquitto", options)
        self.mqtt = free_ports(1)
        configuration = self.directory / "mosquitto.conf"
        configuration.write_text(
            f"listener {self.mqtt[0]} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n"
            "max_queued_messages 0\nmax_inflight_messages 0\n"
        )
        self.commands["broker"] = [self.program(), "-c", str(configuration)]

    @staticmethod
    def program():
        beside = Path("/usr/sbin/mosquitto")
        return shutil.which("mosquitto") or (str(beside) if beside.exists() else None)

    @staticmethod
    def there(_):
        return Mosquitto.program() is not None

    def ready(self):
        self.wait_for("listener", lambda: listens(self.mqtt[0]))


class Rumqttd(Broker):
    def __init__(self, options):
        super().__init__("rumqttd", options)
        # The launcher takes the port after it for MQTT 5.
        self.mqtt = next(ports for ports in iter(lambda: free_ports(1), None) if not listens(ports[0] + 1))
        self.commands["broker"] = [str(options.peers / "rumqttd_peer"), str(self.mqtt[0])]

    @staticmethod
    def there(options):
        return (options.peers / "rumqttd_peer").exists()

    def ready(self):
        self.wait_for("listener", lambda: listens(self.mqtt[0]))
