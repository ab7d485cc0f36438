"""Everyday MQTT with paho-mqtt. usage: everyday.py HOST:PORT..."""

import queue
import sys
import time

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from report import rules, until

NODES = [(host, int(port)) for host, port in (word.rsplit(":", 1) for word in sys.argv[1:])]


class Client:
    """A client with its loop running, and what it was sent."""

    def __init__(self, client_id, node=0, version=mqtt.MQTTv5, clean=True, expiry=0, will=None):
        self.messages = queue.Queue()
        self.connack = queue.Queue()
        self.granted = {}
        self.done = set()
        options = {} if version == mqtt.MQTTv5 else {"clean_session": clean}
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, **options
        )
        self.client.on_connect = lambda c, u, flags, code, p: self.connack.put((flags.session_present, code))
        self.client.on_message = lambda c, u, message: self.messages.put(message)
        self.client.on_subscribe = lambda c, u, mid, codes, p: self.granted.update({mid: codes})
        self.client.on_publish = lambda c, u, mid, code, p: self.done.add(mid)
        if will:
            self.client.will_set(**will)
        options = {}
        if version == mqtt.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = expiry
            options = {"clean_start": clean, "properties": properties}
        host, port = NODES[node % len(NODES)]
        self.client.connect(host, port, keepalive=30, **options)
        self.client.loop_start()
        self.present, code = self.connack.get(timeout=10)
        assert not code.is_failure, code

    def subscribe(self, topic, qos=0, options=None):
        _, mid = self.client.subscribe(topic, **({"options": options} if options else {"qos": qos}))
        until("SUBACK", lambda: mid in self.granted)
        return [code.value for code in self.granted[mid]]

    def publish(self, topic, payload, qos=1, retain=False, properties=None):
        info = self.client.publish(topic, payload, qos, retain, properties)
        info.wait_for_publish(10)
        assert info.is_published(), f"QoS {qos} was not acknowledged"

    def next(self, within=10):
        return self.messages.get(timeout=within)

    def nothing(self, within=0.3):
        try:
            message = self.messages.get(timeout=within)
        except queue.Empty:
            return
        raise AssertionError(f"nothing was expected, came {message.topic} {message.payload}")

    def leave(self):
        self.client.disconnect()
        self.client.loop_stop()

    def vanish(self):
        """Cuts the connection without a DISCONNECT, and stays away."""
        self.client.loop_stop()
        self.client.socket().close()


def every_qos_arrives_through_every_node():
    for version in (mqtt.MQTTv5, mqtt.MQTTv311):
        for qos in (0, 1, 2):
            topic = f"py/qos/{version}/{qos}"
            subscriber = Client(f"py-sub-{version}-{qos}", 0, version)
            assert subscriber.subscribe(topic, qos) == [qos]
            for node in range(len(NODES)):
                publisher = Client(f"py-pub-{version}-{qos}-{node}", node, version)
                publisher.publish(topic, f"{node}", qos)
                message = subscriber.next()
                assert (message.payload, message.qos) == (f"{node}".encode(), qos), message
                publisher.leave()
            subscriber.nothing()
            subscriber.leave()


def large_and_empty_payloads_arrive():
    client = Client("py-sizes")
    client.subscribe("py/sizes", 1)
    for payload in (b"", b"\x00\xff" * 10, b"x" * 500_000):
        client.publish("py/sizes", payload)
        assert client.next().payload == payload
    client.leave()


def wildcards_and_unsubscribe():
    client, publisher = Client("py-wild", 1), Client("py-wild-pub", 2)
    client.subscribe("py/wild/+/x", 1)
    publisher.publish("py/wild/a/x", "1")
    publisher.publish("py/wild/a/y", "2")
    assert client.next().payload == b"1"
    client.nothing()
    client.client.unsubscribe("py/wild/+/x")
    client.subscribe("py/other", 1)
    publisher.publish("py/wild/a/x", "3")
    client.nothing()
    client.leave()
    publisher.leave()


def retained_messages_are_kept_replaced_and_deleted():
    publisher = Client("py-retain-pub", 0)
    for payload in ("1", "2"):
        publisher.publish("py/retain", payload, 1, retain=True)
    for node in range(len(NODES)):
        reader = Client(f"py-retain-{node}", node)
        reader.subscribe("py/retain", 1)
        message = reader.next()
        assert (message.payload, message.retain) == (b"2", True), message
        reader.nothing()
        reader.leave()
    publisher.publish("py/retain", b"", 1, retain=True)
    reader = Client("py-retain-late", 1)
    reader.subscribe("py/retain", 1)
    reader.nothing()
    reader.leave()
    publisher.leave()


def a_will_comes_after_a_cut_and_not_after_a_farewell():
    for version in (mqtt.MQTTv5, mqtt.MQTTv311):
        observer = Client(f"py-will-observer-{version}", 1, version)
        observer.subscribe(f"py/will/{version}/#", 1)
        for name, end in (("polite", Client.leave), ("cut", Client.vanish)):
            will = {"topic": f"py/will/{version}/{name}", "payload": name, "qos": 1}
            end(Client(f"py-will-{name}-{version}", 0, version, will=will))
        message = observer.next()
        assert message.payload == b"cut", message
        observer.nothing()
        observer.leave()


def a_session_is_resumed_on_another_node():
    for version in (mqtt.MQTTv5, mqtt.MQTTv311):
        name = f"py-resume-{version}"
        topic = f"py/resume/{version}"
        # Whatever an earlier run left.
        Client(name, 0, version, clean=True).leave()
        first = Client(name, 0, version, clean=False, expiry=600)
        assert not first.present
        first.subscribe(topic, 2)
        first.leave()
        publisher = Client(f"{name}-pub", 1, version)
        for number in range(20):
            publisher.publish(topic, f"{number}", 1 + number % 2)
        second = Client(name, 2, version, clean=False, expiry=600)
        assert second.present
        got = [int(second.next().payload) for _ in range(20)]
        for qos in (1, 2):
            of_qos = [number for number in got if 1 + number % 2 == qos]
            assert of_qos == sorted(of_qos), got
        assert sorted(got) == list(range(20)), got
        second.nothing()
        second.leave()
        last = Client(name, 1, version, clean=True)
        assert not last.present
        last.leave()
        publisher.leave()


def a_shared_subscription_gives_each_message_to_one():
    members = [Client(f"py-shared-{number}", number) for number in range(3)]
    for member in members:
        member.subscribe("$share/py/py/shared", 1)
    publisher = Client("py-shared-pub")
    for number in range(60):
        publisher.publish("py/shared", f"{number}", 1 + number % 2)
    until("all messages", lambda: sum(member.messages.qsize() for member in members) >= 60)
    time.sleep(0.3)
    got = sorted(int(member.next().payload) for member in members for _ in range(member.messages.qsize()))
    assert got == list(range(60)), got
    for client in members + [publisher]:
        client.leave()


def properties_pass():
    subscriber, publisher = Client("py-properties", 0), Client("py-properties-pub", 1)
    subscriber.subscribe("py/properties", 1)
    properties = Properties(PacketTypes.PUBLISH)
    properties.PayloadFormatIndicator = 1
    properties.MessageExpiryInterval = 60
    properties.ContentType = "text/plain"
    properties.ResponseTopic = "py/answer"
    properties.CorrelationData = b"\x00\x01"
    properties.UserProperty = [("a", "1"), ("a", "2")]
    publisher.publish("py/properties", "x", 1, properties=properties)
    got = subscriber.next().properties
    assert got.PayloadFormatIndicator == 1 and 50 <= got.MessageExpiryInterval <= 60
    assert got.ContentType == "text/plain" and got.ResponseTopic == "py/answer"
    assert got.CorrelationData == b"\x00\x01" and got.UserProperty == [("a", "1"), ("a", "2")]
    for client in (subscriber, publisher):
        client.leave()


def no_local_and_retain_handling_are_respected():
    client = Client("py-options")
    client.subscribe("py/options", options=SubscribeOptions(qos=1, noLocal=True))
    client.publish("py/options", "own", 1, retain=True)
    client.nothing()
    never = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
    client.subscribe("py/options", options=never)
    client.nothing()
    client.publish("py/options", b"", 1, retain=True)
    client.leave()


rules(
    every_qos_arrives_through_every_node,
    large_and_empty_payloads_arrive,
    wildcards_and_unsubscribe,
    retained_messages_are_kept_replaced_and_deleted,
    a_will_comes_after_a_cut_and_not_after_a_farewell,
    a_session_is_resumed_on_another_node,
    a_shared_subscription_gives_each_message_to_one,
    properties_pass,
    no_local_and_retain_handling_are_respected,
)
