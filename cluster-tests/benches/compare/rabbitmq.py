"""Three clustered RabbitMQ nodes with the MQTT plugin, whose durable sessions are quorum queues.

Everything is this run's own: node names, cookie, epmd and its port, data and logs.
"""

import os
import secrets
import shutil
import subprocess
from pathlib import Path

from processes import Broker, free_ports, listens

# Debian's /usr/sbin wrappers change the user and the directory; these do not.
SCRIPTS = Path("/usr/lib/rabbitmq/bin")
NODES = 3


class RabbitMq(Broker):
    def __init__(self, options):
        super().__init__("rabbitmq", options)
        self.epmd, *ports = free_ports(1 + 2 * NODES)
        self.mqtt, distribution = ports[:NODES], ports[NODES:]
        run = secrets.token_hex(3)
        self.nodes = [f"compare-{run}-{i}@localhost" for i in range(NODES)]
        cookie = self.directory / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        plugins = self.directory / "enabled_plugins"
        plugins.write_text("[rabbitmq_mqtt].\n")
        self.shared = {
            "HOME": str(self.directory),
            "ERL_EPMD_PORT": str(self.epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "no-rabbitmq-env.conf"),
        }
        self.commands["epmd"] = ["epmd", "-port", str(self.epmd), "-address", "127.0.0.1"]
        for i in range(NODES):
            own = self.directory / f"n{i}"
            own.mkdir()
            members = "".join(
                f"cluster_formation.classic_config.nodes.{number} = {node}\n" for number, node in enumerate(self.nodes, 1)
            )
            (own / "rabbitmq.conf").write_text(
                f"listeners.tcp = none\nmqtt.listeners.tcp.1 = 127.0.0.1:{self.mqtt[i]}\n"
                "mqtt.durable_queue_type = quorum\nmqtt.allow_anonymous = true\n"
                # Its default of 10 unacknowledged messages per subscriber costs it time.
                "mqtt.prefetch = 200\n"
                "cluster_formation.peer_discovery_backend = classic_config\n"
                f"cluster_formation.target_cluster_size_hint = {NODES}\n{members}"
                "log.console = true\nlog.console.level = warning\nlog.file = false\n"
            )
            self.commands[i] = [str(SCRIPTS / "rabbitmq-server")]
            self.environments[i] = {
                **self.shared,
                "RABBITMQ_NODENAME": self.nodes[i],
                "RABBITMQ_CONFIG_FILE": str(own / "rabbitmq.conf"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
                "RABBITMQ_MNESIA_BASE": str(own / "data"),
                "RABBITMQ_LOG_BASE": str(own / "logs"),
                "RABBITMQ_GENERATED_CONFIG_DIR": str(own / "generated"),
                "RABBITMQ_PID_FILE": str(own / "pid"),
                "RABBITMQ_DIST_PORT": str(distribution[i]),
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false",
                # The script then becomes the node instead of watching over it.
                "RUNNING_UNDER_SYSTEMD": "true",
            }

    @staticmethod
    def there(_):
        return (SCRIPTS / "rabbitmq-server").exists() and bool(shutil.which("epmd"))

    def start_all(self):
        """One node after another: the Raft group of MQTT's client ids may refuse one that joins while another does."""
        self.start("epmd")
        # A node that finds none would start one of its own, which nobody ends.
        self.wait_for("epmd", lambda: listens(self.epmd))
        for i, port in enumerate(self.mqtt):
            self.start(i)
            self.wait_for("MQTT listener", lambda port=port: listens(port), limit=180)
            self.wait_for_client(port)

    def ready(self):
        found = subprocess.run(
            [str(SCRIPTS / "rabbitmqctl"), "-n", self.nodes[0], "await_online_nodes", str(NODES), "-t", "60"],
            env={**os.environ, **self.shared}, capture_output=True, text=True,
        )
        if found.returncode != 0:
            raise RuntimeError(f"rabbitmq: the nodes did not form a cluster: {found.stdout}{found.stderr}")
