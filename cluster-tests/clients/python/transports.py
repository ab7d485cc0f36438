"""One client over a transport: connects, subscribes, sends itself messages of every QoS, and says what came.

Arguments: host, port, transport (tcp or websockets), path, CA file or "-". Its report is one line of JSON.
"""

import json
import sys
import threading

import paho.mqtt.client as mqtt

HOST, PORT, TRANSPORT, PATH, CA_FILE = sys.argv[1:6]
# Larger than a frame of 64 KiB and than four TLS records.
SIZES = [1, 125, 126, 70_000, 300_000]

done = threading.Event()
came = []


def connected(client, userdata, flags, reason, properties):
    if reason.is_failure:
        print(json.dumps({"failed": str(reason)}), flush=True)
        done.set()
        return
    client.subscribe("transport/#", 2)


def subscribed(client, userdata, mid, reasons, properties):
    for qos in (0, 1, 2):
        for size in SIZES:
            client.publish(f"transport/{qos}", bytes([qos]) * size, qos)


def message(client, userdata, packet):
    came.append([packet.qos, len(packet.payload), set(packet.payload) == {packet.qos}])
    if len(came) == 3 * len(SIZES):
        done.set()


client = mqtt.Client(
    mqtt.CallbackAPIVersion.VERSION2,
    client_id="",
    transport=TRANSPORT,
    protocol=mqtt.MQTTv5,
)
client.on_connect = connected
client.on_subscribe = subscribed
client.on_message = message
if TRANSPORT == "websockets":
    client.ws_set_options(path=PATH)
if CA_FILE != "-":
    client.tls_set(ca_certs=CA_FILE)
client.connect(HOST, int(PORT))
client.loop_start()
done.wait(30)
client.disconnect()
client.loop_stop()
right = sorted([qos, size, True] for qos in (0, 1, 2) for size in SIZES)
print(json.dumps({"rule": TRANSPORT, "holds": sorted(came) == right, "why": f"came: {came}"}))
