"""Three NATS servers with JetStream and MQTT; what durable sessions need is kept on all three (R3)."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from processes import Broker, free_ports, http_json, http_ok, listens

NODES = 3


class Nats(Broker):
    def __init__(self, options, synced=False):
        super().__init__("nats fsync" if synced else "nats", options)
        ports = free_ports(4 * NODES)
        self.mqtt, client, self.http, cluster = (ports[i::4] for i in range(4))
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in cluster)
        for i in range(NODES):
            configuration = self.directory / f"n{i}.conf"
            sync = "sync_interval: always" if synced else ""
            configuration.write_text(
                f'server_name: "n{i}"\nlisten: "127.0.0.1:{client[i]}"\nhttp: "127.0.0.1:{self.http[i]}"\n'
                f'jetstream {{ store_dir: "{self.directory}/n{i}"\n{sync}\n}}\n'
                f'cluster {{ name: "compare", listen: "127.0.0.1:{cluster[i]}", routes: [{routes}] }}\n'
                f'mqtt {{ listen: "127.0.0.1:{self.mqtt[i]}", stream_replicas: {NODES}, consumer_replicas: {NODES} }}\n'
            )
            self.commands[i] = [self.program(options), "-c", str(configuration)]

    @staticmethod
    def program(options):
        """A server beside the other peers comes before the installed one."""
        beside = [options.peers / "nats-server", Path("/usr/sbin/nats-server")]
        return next((str(path) for path in beside if path.exists()), None) or shutil.which("nats-server")

    @staticmethod
    def there(options):
        return Nats.program(options) is not None

    @staticmethod
    def has_qos_2(options):
        found = subprocess.run([Nats.program(options), "--version"], capture_output=True, text=True)
        version = re.search(r"v(\d+)\.(\d+)", found.stdout)
        return version is not None and (int(version[1]), int(version[2])) >= (2, 10)

    @staticmethod
    def can_sync(options):
        """Whether the server knows how to write every message to disk before it answers; asks it to check a file."""
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            file.write("jetstream { sync_interval: always }\n")
            file.flush()
            return subprocess.run([Nats.program(options), "-t", "-c", file.name], capture_output=True).returncode == 0

    def ready(self):
        def formed(port):
            meta = ((http_json(f"http://127.0.0.1:{port}/jsz") or {}).get("meta_cluster")) or {}
            return meta.get("leader") and meta.get("cluster_size") == NODES

        for mqtt, port in zip(self.mqtt, self.http):
            self.wait_for("JetStream's leader", lambda port=port: formed(port))
            self.wait_for("health", lambda port=port: http_ok(f"http://127.0.0.1:{port}/healthz"))
            self.wait_for("MQTT listener", lambda mqtt=mqtt: listens(mqtt))
        # The first client makes the streams for MQTT; servers refuse others while that is under way.
        for port in self.mqtt:
            self.wait_for_client(port)
