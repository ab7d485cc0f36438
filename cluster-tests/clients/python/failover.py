"""paho-mqtt publishes and subscribes at QoS 1 and 2 while the nodes under both are killed. usage: failover.py HOST:PORT...

Both clients keep their sessions, and go to the next node when theirs is gone; paho itself re-sends and de-duplicates.
"""

import sys
import threading
import time

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from report import ask, say, until

NODES = [(host, int(port)) for host, port in (word.rsplit(":", 1) for word in sys.argv[1:])]
TOPIC = "py/failover"
MESSAGES = 600


class Traveller:
    """A client that goes to the next node when the connection breaks or cannot be made."""

    def __init__(self, client_id, node):
        self.node = node
        self.ready = threading.Event()
        self.leaving = False
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5
        )
        self.client.max_inflight_messages_set(10)
        self.client.reconnect_delay_set(1, 1)
        self.client.connect_timeout = 2.5
        self.client.on_connect = self.connected
        # Packet ids of a client that sends few messages are not used again.
        self.done = set()
        self.client.on_publish = lambda c, u, mid, *_: self.done.add(mid)
        self.client.on_disconnect = lambda *_: self.move()
        self.client.on_connect_fail = lambda *_: self.move()
        self.aim()
        self.client.loop_start()

    def aim(self):
        host, port = NODES[self.node]
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 600
        self.client.connect_async(host, port, keepalive=5, clean_start=False, properties=properties)

    def move(self):
        if not self.leaving:
            self.ready.clear()
            self.node = (self.node + 1) % len(NODES)
            self.aim()

    def connected(self, client, userdata, flags, code, properties):
        if not code.is_failure:
            say(client=client._client_id.decode(), present=flags.session_present)
            self.ready.set()

    def leave(self):
        self.leaving = True
        self.client.disconnect()
        self.client.loop_stop()


received = set()


def receive(client, userdata, message):
    received.add(message.payload)
    say(received=message.payload.decode(), qos=message.qos, topic=message.topic)


subscriber = Traveller("py-failover-sub", 1)
subscriber.client.on_message = receive
assert subscriber.ready.wait(15)
granted = threading.Event()
subscriber.client.on_subscribe = lambda *_: granted.set()
subscriber.client.subscribe(TOPIC, 2)
assert granted.wait(15)

publisher = Traveller("py-failover-pub", 2)
assert publisher.ready.wait(15)
sent = []
for number in range(MESSAGES):
    qos = 1 + number % 2
    payload = f"{qos}-{number // 2}"
    # What is published without a connection, paho sends later.
    sent.append((payload, qos, publisher.client.publish(TOPIC, payload, qos).mid))
    # Few are under way at a time, so that each kill meets some of each kind.
    until("acknowledgements", lambda: len(sent) - len(publisher.done) < 20, 40)
    if number == MESSAGES // 4:
        killed = subscriber.node
        ask("kill", killed)
    if number == MESSAGES // 2:
        ask("start", killed)
        killed = publisher.node
        ask("kill", killed)
    if number == MESSAGES * 3 // 4:
        ask("start", killed)
        ask("kill-leader", 0)
for payload, qos, mid in sent:
    until(f"{payload} to be acknowledged", lambda: mid in publisher.done, 40)
    say(acknowledged=payload, qos=qos)
until("everything", lambda: len(received) == MESSAGES, 40)
# Time for a duplicate to arrive.
time.sleep(0.5)
publisher.leave()
subscriber.leave()
say(done=True)
