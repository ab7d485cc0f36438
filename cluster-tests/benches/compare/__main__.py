"""Measures Quorumq beside etcd, Mosquitto, rumqttd, RabbitMQ and NATS in one run on one machine, and prints ratios.

Only one system runs at a time; every figure of a peer is taken right after Quorumq's, so that a busy machine is busy
for both. Peers that are not installed are left out. Starts and ends only processes of its own, on loopback.

usage: python3 benches/compare --bin quorumq [--peers DIRECTORY] [--only PART] [--seconds S] [--kills N] [--out FILE]
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from disk import disk_figures
from failover import failover_figures
from hub import events_figures, fleet_figures, hub_figures
from log_ins import log_in_figures
from nats import Nats
from plain import plain_figures
from processes import say
from rabbitmq import RabbitMq
from rules import rule_figures
from sessions import session_figures
from store import store_figures
from sustained import sustained_figures
from systems import Etcd, Mosquitto, Rumqttd
from table import Table
from tls import tls_figures
from wildcards import wildcard_figures

FIGURES = {
    "store": store_figures, "failover": failover_figures, "mqtt": plain_figures, "wildcards": wildcard_figures,
    "sessions": session_figures, "disk": disk_figures, "sustained": sustained_figures,
    "hub": hub_figures, "fleet": fleet_figures, "events": events_figures,
    "tls": tls_figures, "log-ins": log_in_figures, "rules": rule_figures,
}
PEERS = {"etcd": Etcd, "mosquitto": Mosquitto, "rumqttd": Rumqttd, "rabbitmq": RabbitMq, "nats": Nats}


def parse():
    parser = argparse.ArgumentParser(prog="compare", description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=os.environ.get("QUORUMQ_BIN", "quorumq"), help="the release binary")
    parser.add_argument("--peers", type=Path, default=None,
                        help="directory of etcd_load, rumqttd_peer and maybe a nats-server; default: beside --bin")
    parser.add_argument("--only", choices=FIGURES, action="append", help="only these figures")
    parser.add_argument("--without", choices=PEERS, action="append", default=[], help="leave this peer out")
    parser.add_argument("--seconds", type=float, default=5, help="measured time of each run")
    parser.add_argument("--sustained", type=float, default=150, help="measured time of the run over many keys")
    parser.add_argument("--kills", type=int, default=20, help="ends of the leader per system")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="messages of the backlog")
    parser.add_argument("--peer-backlog", type=int, default=50_000, help="messages of the peers' backlog")
    parser.add_argument("--idle", type=int, default=5000, help="idle connections")
    parser.add_argument("--fleet", type=int, default=100_000, help="devices whose twins are queried")
    parser.add_argument("--outage", type=int, default=864_000, help="events of an outage of their endpoint")
    parser.add_argument("--death", type=int, default=18_000, help="clients of a node that dies")
    parser.add_argument("--out", type=Path, help="also write the table as JSON")
    parser.add_argument("--work", default=None, help="directory for data; default: the system's temporary one")
    return parser.parse_args()


def main():
    options = parse()
    # Also an end from outside ends what was started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options.peers = options.peers or Path(options.bin).resolve().parent
    for name, peer in PEERS.items():
        there = peer.there(options)
        setattr(options, name, there and name not in options.without)
        if not there:
            say(f"{name}: not there, left out")
    table = Table()
    for name in options.only or FIGURES:
        FIGURES[name](options, table)
    table.show()
    if options.out:
        options.out.write_text(json.dumps(table.rows, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
