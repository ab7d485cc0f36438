"""Tokens as passwords with paho-mqtt. usage: TOKEN=... BRIEF=... log_in.py HOST:PORT..."""

import os
import queue
import sys

import paho.mqtt.client as mqtt

from report import rules

NODES = [(host, int(port)) for host, port in (word.rsplit(":", 1) for word in sys.argv[1:])]


def connect(node, version, token):
    """A client with its loop running; its CONNACK, its messages and its end go into queues."""
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, client_id=f"paho-{node}-{version}", protocol=version
    )
    client.codes, client.messages, client.ends = queue.Queue(), queue.Queue(), queue.Queue()
    client.on_connect = lambda c, u, flags, code, p: c.codes.put(code)
    client.on_message = lambda c, u, message: c.messages.put(message.payload)
    client.on_disconnect = lambda c, u, flags, code, p: c.ends.put(code)
    client.username_pw_set("any", token)
    client.connect(*NODES[node], keepalive=30)
    client.loop_start()
    return client


def a_token_logs_in_on_every_node():
    for node in range(len(NODES)):
        for version in (mqtt.MQTTv311, mqtt.MQTTv5):
            client = connect(node, version, os.environ["TOKEN"])
            assert not client.codes.get(timeout=10).is_failure
            topic = f"paho/{node}/{version}"
            client.subscribe(topic, 1)
            client.publish(topic, b"hello", 1, retain=True)
            assert client.messages.get(timeout=10) == b"hello"
            client.disconnect()
            client.loop_stop()


def a_brief_token_ends_its_connection():
    client = connect(0, mqtt.MQTTv5, os.environ["BRIEF"])
    assert not client.codes.get(timeout=10).is_failure
    code = client.ends.get(timeout=10)
    client.loop_stop()
    assert code.value == 0x87, code


rules(a_brief_token_ends_its_connection, a_token_logs_in_on_every_node)
