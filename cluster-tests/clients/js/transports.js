// One client of MQTT.js over a transport: it sends itself messages of every QoS, and says what came.
// usage: node transports.js URL CA_FILE    ("-": without TLS)    Its report is one line of JSON.
"use strict";
const fs = require("node:fs");
const mqtt = require("mqtt");

const [url, caFile] = process.argv.slice(2);
const SIZES = [1, 125, 126, 70000, 300000];

const came = [];
const tls = caFile === "-" ? {} : { ca: fs.readFileSync(caFile) };
const client = mqtt.connect(url, { ...tls, protocolVersion: 5, reconnectPeriod: 0 });

function finish(why) {
  const right = [0, 1, 2].flatMap((qos) => SIZES.map((size) => `${qos} ${size} true`)).sort();
  const holds = JSON.stringify(came.sort()) === JSON.stringify(right);
  console.log(JSON.stringify({ rule: url, holds, why: `${why}, came: ${came}` }));
  client.end(false, () => process.exit(0));
}

const late = setTimeout(() => finish("not all in time"), 30000);
client.on("error", (error) => finish(`${error}`));
client.on("message", (topic, payload, packet) => {
  came.push(`${packet.qos} ${payload.length} ${payload.every((byte) => byte === packet.qos)}`);
  if (came.length === 3 * SIZES.length) {
    clearTimeout(late);
    finish("all");
  }
});
client.on("connect", async () => {
  await client.subscribeAsync("transports/js/#", { qos: 2 });
  for (const qos of [0, 1, 2]) {
    for (const size of SIZES) {
      client.publish(`transports/js/${qos}`, Buffer.alloc(size, qos), { qos });
    }
  }
});
