"""Events read with the SDK of CloudEvents, unmodified. usage: cloud_events.py FILE NODE...

FILE has a request of the broker per line: {"headers": {...}, "body": "..."}, from three clients that came and went."""

import json
import sys

from cloudevents.core.bindings.http import HTTPMessage, from_http_event

from report import rules

BATCH, SINGLE = "application/cloudevents-batch+json", "application/cloudevents+json"


def messages():
    """One for each event, with the mode that it came in."""
    for line in open(sys.argv[1], encoding="utf-8"):
        request = json.loads(line)
        headers, body = request["headers"], request["body"]
        content = headers["content-type"].split(";")[0]
        if content == BATCH:
            for event in json.loads(body):
                yield "batch", HTTPMessage({"content-type": SINGLE}, json.dumps(event).encode())
        else:
            mode = "structured" if content == SINGLE else "binary"
            yield mode, HTTPMessage(headers, body.encode())


def read(mode):
    events = [from_http_event(message) for way, message in messages() if way == mode]
    seen = set()
    for event in events:
        attributes = event.get_attributes()
        assert attributes["specversion"] == "1.0" and event.get_source(), attributes
        assert event.get_time().tzinfo is not None, attributes
        data = event.get_data()
        kind = event.get_type().removeprefix("Microsoft.EventGrid.MQTTClientSession")
        name, session = data["clientAuthenticationName"], data["clientSessionName"]
        assert event.get_subject() == f"clients/{name}/sessions/{session}", attributes
        seen.add((kind, session, data["sequenceNumber"]))
    assert len({event.get_id() for event in events}) == 6, events
    names = [f"record-{mode}-{name}" for name in ("plain", "gr\u00fc\u00dfe \u2603", 'a"b%41/c')]
    assert seen == {(kind, name, 1) for kind in ("Connected", "Disconnected") for name in names}, seen


def batches():
    read("batch")


def structured():
    read("structured")


def binary():
    read("binary")


rules(batches, structured, binary)
