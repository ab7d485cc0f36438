// Events against the JSON schema of CloudEvents, with the SDK for JavaScript, unmodified. usage: node cloud_events.js FILE
//
// FILE has a request of the broker per line: {"headers": {...}, "body": "..."}.
"use strict";
const assert = require("node:assert");
const fs = require("node:fs");
const { CloudEvent, HTTP } = require("cloudevents");
const schema = require("cloudevents/dist/schema/v1.js").default;
const { rules } = require("./report.js");

const BATCH = "application/cloudevents-batch+json";
const SINGLE = "application/cloudevents+json";

const requests = fs
  .readFileSync(process.argv[2], "utf8")
  .trimEnd()
  .split("\n")
  .map((line) => JSON.parse(line));

const mode = ({ headers }) => {
  const content = headers["content-type"].split(";")[0];
  return content === BATCH ? "batch" : content === SINGLE ? "structured" : "binary";
};

/** Fails unless the schema allows the object, exactly as it came. */
function check(event) {
  assert.ok(schema(event), JSON.stringify({ event, errors: schema.errors }));
  // Names of attributes, which the schema leaves open.
  assert.strictEqual(new CloudEvent(event).validate(), true);
}

/** All requests of a mode: as the SDK reads them and, where the body has whole events, as they stand there. */
function read(wanted) {
  const events = requests.filter((request) => mode(request) === wanted).flatMap((request) => {
    const read = [HTTP.toEvent(request)].flat();
    if (wanted !== "binary") {
      const bodies = [JSON.parse(request.body)].flat();
      bodies.forEach(check);
      assert.deepStrictEqual(read.map((event) => event.id), bodies.map((event) => event.id));
    }
    return read;
  });
  assert.strictEqual(new Set(events.map((event) => event.id)).size, 6);
  for (const event of events) {
    assert.strictEqual(event.validate(), true);
    assert.strictEqual(typeof event.data.sequenceNumber, "number");
  }
}

function batches() {
  read("batch");
}

function structured() {
  read("structured");
}

function binary() {
  read("binary");
}

/** The schema is one that refuses something. */
function what_is_no_event_is_refused() {
  const { body } = requests.find((request) => mode(request) === "structured");
  for (const change of [
    { id: "" },
    { id: undefined },
    { source: "" },
    { source: undefined },
    { type: "" },
    { specversion: undefined },
    { time: "yesterday" },
    { subject: "" },
    { datacontenttype: "" },
  ]) {
    const event = JSON.parse(JSON.stringify({ ...JSON.parse(body), ...change }));
    assert.throws(() => check(event), JSON.stringify(change));
  }
}

rules(batches, structured, binary, what_is_no_event_is_refused);
