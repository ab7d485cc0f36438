"""Log-ins with user name and password by paho-mqtt. usage: password.py HOST:PORT USER PASSWORD EXPECTED

EXPECTED is `accepted` or `refused`, for MQTT 3.1.1 and MQTT 5 alike.
"""

import queue
import sys

import paho.mqtt.client as mqtt

from report import rules


def log_in(version):
    address, user, password, expected = sys.argv[1:5]
    host, port = address.rsplit(":", 1)
    codes = queue.Queue()
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, client_id=f"paho-{version}-{user}", protocol=version
    )
    client.username_pw_set(user, password)
    client.on_connect = lambda c, u, flags, code, p: codes.put(code)
    client.connect(host, int(port), keepalive=30)
    client.loop_start()
    code = codes.get(timeout=20)
    client.disconnect()
    client.loop_stop()
    assert code.is_failure == (expected == "refused"), code


def mqtt_3_1_1():
    log_in(mqtt.MQTTv311)


def mqtt_5():
    log_in(mqtt.MQTTv5)


rules(mqtt_3_1_1, mqtt_5)
