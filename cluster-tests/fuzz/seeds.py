#!/usr/bin/env python3
"""Writes what fuzzing begins with: some inputs for each target that get past its first checks. They lie in seeds/.
The certificates there are OpenSSL's, and their keys nobody's.

usage: cluster-tests/fuzz/seeds.py
"""

import base64
import json
from pathlib import Path

HERE = Path(__file__).parent / "seeds"
NOW = 1_790_000_000



def field(number, value):
    """A field of a protobuf message: a number, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(*fields):
    return b"".join(field(number, value) for number, value in fields)


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def text(value):
    """A string of MQTT."""
    value = value.encode() if isinstance(value, str) else value
    return len(value).to_bytes(2, "big") + value


def packet(first, *parts):
    body = b"".join(parts)
    return bytes([first]) + varint(len(body)) + body


def log_id(term, index):
    return message((1, term), (2, index))


def vote(term, node, committed):
    return message((1, term), (2, node), (3, int(committed)))


def entry(term, index, payload):
    return message((1, term), (2, index), (3, 1), (4, payload))


APPEND = message((2, vote(5, 3, True)), (3, log_id(4, 7)), (4, entry(4, 8, b"")), (4, entry(5, 9, b"x")), (5, log_id(4, 7)))
VOTE = message((2, vote(6, 3, False)), (3, log_id(4, 7)), (4, 1))
TRANSFER = message((2, vote(5, 3, True)), (3, 1), (4, log_id(4, 7)))
NODE = message((1, 4), (2, "127.0.0.1:7883"), (3, "0190f0a0-0000-7000-8000-000000000004"))
MEMBERSHIP = message((1, message((1, bytes([1, 2, 3])))), (2, NODE))
STORED = message((1, log_id(1, 1)), (2, MEMBERSHIP))
BEGIN = message((2, vote(5, 3, True)), (3, message((1, log_id(4, 7)), (2, STORED))), (4, "s"),
                (5, message((1, "a.sst"), (2, 1 << 40))), (5, message((1, "b.sst"), (2, 3), (3, 7))))
CHUNK = message((1, 0), (2, 64), (3, b"content"), (4, 7))
PROPOSE = message((1, 3), (2, 9), (3, 1), (4, b""))
CONTACT = message((1, 3), (2, 9), (3, NOW * 1000), (4, NOW * 1000))
DELIVER = message((1, 3), (2, 9), (3, 1), (5, 7))
METADATA = b"\0".join([
    b"\x03quorumq-format", b"3", b"quorumq-machine", b"1", b"quorumq-cluster", b"f", b"quorumq-from", b"3",
    b"quorumq-from-directory", b"d3", b"quorumq-to", b"1", b"quorumq-to-directory", b"d", b"",
])

# By the first byte of the input, which chooses the message.
CLUSTER_PORT = {
    "append": (0, APPEND), "vote": (1, VOTE), "transfer": (2, TRANSFER), "begin": (3, BEGIN),
    "part": (4, message((2, CHUNK))), "join": (5, message((2, NODE), (6, 1))), "propose": (6, PROPOSE), "deliver": (9, DELIVER),
    "metadata": (11, METADATA), "read-index": (12, message((1, 7))), "hello": (13, message((1, 0))), "contact": (14, CONTACT),
    "hand-over": (15, message((1, 9), (2, 7))), "hello-reply": (21, message((1, 3), (2, "d3"), (3, 1), (5, 1), (7, log_id(1, 1)), (8, bytes([1, 2, 3])))),
    "step": (20, message((1, message((1, bytes([0, 1])))))), "delivered": (24, message((1, 1), (2, 7), (3, message((1, 1), (2, 3))), (5, 1))),
    "refused": (22, message((2, message((1, 2), (2, 3), (3, "another data directory"), (4, "127.0.0.1:1"))))),
    "membership": (27, STORED),
}


def step(what, argument, content=b""):
    return bytes([what, argument, len(content)]) + content


def call(method, *messages):
    """Opens a call, sends its messages, and ends the stream with the last one."""
    ends = [0] * (len(messages) - 1) + [1]
    return step(0, method) + b"".join(step(2, end, content) for end, content in zip(ends, messages))


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


RAFT = {"append": (0, APPEND, APPEND), "heartbeat": (1, APPEND), "vote": (2, VOTE), "transfer": (3, TRANSFER),
        "read-index": (4, b""), "snapshot": (5, message((1, BEGIN)), message((2, CHUNK)), message((4, b""))), "hello": (6, b""),
        "change": (7, message((2, NODE))), "propose": (8, PROPOSE, PROPOSE), "contact": (9, CONTACT),
        "deliver": (10, DELIVER), "hand-over": (11, message((1, 9), (2, 7)))}
CLUSTER_CALLS = {name: b"\x03" + call(method, *messages) for name, (method, *messages) in RAFT.items()} | {
    "all": b"\x03" + b"".join(call(method, *messages) for method, *messages in RAFT.values()),
    "unproven": b"\x02" + call(1, APPEND),
    "another-cluster": b"\0" + step(1, 8 << 4 | 1, b"other") + step(2, 1, APPEND),
    "announced": b"\x03" + step(0, 0) + step(6, 4, APPEND) + step(3, 0, b"more"),
    "too-large": b"\x03" + step(0, 0) + step(6, 255, APPEND),
    "reset": b"\x03" + step(0, 0) + step(7, 8) + step(2, 1, APPEND),
    "raw": b"\x07PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"\0\3\0\0\0\x64") + frame(6, 0, 0, bytes(8))
           + frame(1, 4, 1, b"\x83\x86\x44\x1d/quorumq.raft.v1.Raft/Heartbe") + frame(8, 0, 0, b"\0\0\1\0") + frame(0, 1, 1, bytes(5)),
    "http1": b"\x07POST /quorumq.raft.v1.Raft/Vote HTTP/1.1\r\nhost: n\r\n\r\n",
}

CONNECT5 = packet(0x10, text("MQTT"), b"\x05\xce\0\x1e", varint(8), b"\x11\0\0\0\x3c\x21\0\x14", text("c"), varint(0), text("will"),
                  text("gone"), text("user"), text("password"))
MQTT_CONNECT = {
    "v5": CONNECT5,
    "v311": packet(0x10, text("MQTT"), b"\x04\xc2\0\x1e", text("c"), text("user"), text("password")),
    "v31": packet(0x10, text("MQIsdp"), b"\x03\x02\0\x1e", text("c")),
    "scram": packet(0x10, text("MQTT"), b"\x05\x02\0\0", varint(22), b"\x15", text("SCRAM-SHA-256"), b"\x16", text("n,,n"), text("c")),
}
PUBLISH5 = packet(0x32, text("a/b"), b"\0\1", varint(14), b"\1\1\x02\0\0\0\x3c", b"\x08", text("r/t"), b"\x23\0\1", b"payload")
FROM_CLIENT = {
    "publish": PUBLISH5,
    "publish-0": packet(0x30, text("a/b"), b"\0payload"),
    "subscribe": packet(0x82, b"\0\2", varint(2), b"\x0b\1", text("$share/g/a/+"), b"\1", text("#"), b"\x2d"),
    "unsubscribe": packet(0xa2, b"\0\3\0", text("a/+")),
    "answers": packet(0x40, b"\0\1") + packet(0x50, b"\0\1\x10\0") + packet(0x62, b"\0\1") + packet(0x70, b"\0\1"),
    "end": packet(0xc0) + packet(0xf0, b"\x18", varint(9), b"\x15", text("SCRAM"), b"\x16", b"\0\0") + packet(0xe0, b"\x04\0"),
}
FROM_SERVER = {
    "connack": packet(0x20, b"\1\0", varint(10), b"\x21\0\x14\x24\1\x27\0\1\0\0"),
    "publish": PUBLISH5,
    "suback": packet(0x90, b"\0\2\0\1\x87") + packet(0xb0, b"\0\3\0\x11"),
    "disconnect": packet(0xe0, b"\x9d", varint(6), b"\x1c", text("o:1")),
}

V2 = b"\r\n\r\n\0\r\nQUIT\n"
PROXY = {
    "v1": b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 1883\r\n",
    "v1-6": b"PROXY TCP6 2001:db8::1 2001:db8::2 56324 1883\r\n",
    "v1-unknown": b"PROXY UNKNOWN\r\n",
    "v2": V2 + b"\x21\x11\0\x0c" + bytes([192, 0, 2, 1, 198, 51, 100, 1]) + b"\xdc\4\7\x5b",
    "v2-local": V2 + b"\x20\0\0\0",
    "v2-tlv": V2 + b"\x21\x21\0\x28" + bytes(36) + b"\4\0\1\0",
}
# Flags, what is damaged, the number of cuts, the cuts, the content.
TLS = {
    "tls13": bytes([0, 0, 0, 0, 2, 10, 60]) + b"hello, world" * 4,
    "tls12-known": bytes([3, 0, 0, 0, 1, 199]) + b"hello" * 20,
    "renewed": bytes([4, 0, 0, 0, 0]) + b"hello" * 60,
    "damaged": bytes([16, 1, 40, 1, 1, 50]) + b"hello",
    "raw": bytes([8, 0, 0, 0, 1, 3]) + bytes([22, 3, 1, 0, 5, 1, 0, 0, 1, 3]),
}


def masked(first, content, mask=b"\1\2\3\4"):
    length = bytes([0x80 | len(content)]) if len(content) < 126 else b"\xfe" + len(content).to_bytes(2, "big")
    return bytes([first]) + length + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(content))


WEBSOCKET = {
    "binary": b"\5" + masked(0x82, CONNECT5),
    "fragments": b"\1" + masked(2, CONNECT5[:9]) + masked(0x89, b"ping") + masked(0x80, CONNECT5[9:]),
    "long": b"\x40" + masked(0x82, bytes(300)) + masked(0x88, b"\x03\xe8bye"),
    "text": b"\2" + masked(0x81, b"text"),
}
QUERIES = [
    "SELECT * FROM devices",
    "SELECT deviceId, tags.site AS s FROM devices WHERE tags.site = 'oslo' AND properties.reported.t >= 20.5",
    "SELECT tags.g, COUNT() AS n, AVG(properties.desired.x) FROM devices GROUP BY tags.g",
    "SELECT TOP 10 moduleId FROM devices.modules WHERE NOT (tags.a IN ['x', 'y'] OR is_defined(tags.b)) ORDER BY tags.a\nabc",
]


def signed(header, claims):
    return json.dumps(header).encode() + b"\0" + json.dumps(claims).encode()


CLAIMS = {"sub": "ann", "iss": "i", "aud": ["a", "b"], "nbf": NOW - 9, "exp": NOW + 900, "groups": ["g"], "a": {"b": "site"}}
SIGNED = {"whole": signed({"alg": "HS256", "typ": "JWT", "kid": "k"}, CLAIMS), "expired": signed({"alg": "HS256"}, CLAIMS | {"exp": 1}),
          "none": signed({"alg": "none"}, {"sub": "ann"})}
PART = lambda value: base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")
TOKENS = {
    "token": b".".join([PART({"alg": "HS256"}), PART(CLAIMS), b"c2lnbmF0dXJl"]),
    "jwks": json.dumps({"keys": [{"kty": "oct", "kid": "k", "k": "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"},
                                 {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}).encode(),
}

SEEDS = {
    "auth_signed_token": SIGNED, "auth_token": TOKENS, "cluster_calls": CLUSTER_CALLS,
    "cluster_port": {name: bytes([kind]) + content for name, (kind, content) in CLUSTER_PORT.items()},
    "mqtt_connect": MQTT_CONNECT, "mqtt_from_client": FROM_CLIENT, "mqtt_from_server": FROM_SERVER,
    "transport_proxy": PROXY, "transport_tls": TLS, "transport_websocket": WEBSOCKET,
    "twin_query": {str(number): query.encode() for number, query in enumerate(QUERIES)},
}

if __name__ == "__main__":
    for target, seeds in SEEDS.items():
        (HERE / target).mkdir(parents=True, exist_ok=True)
        for name, content in seeds.items():
            (HERE / target / name).write_bytes(content)
