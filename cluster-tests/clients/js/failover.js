// MQTT.js publishes and subscribes at QoS 1 and 2 while the nodes under both are killed. usage: node failover.js HOST:PORT...
//
// Both clients keep their sessions, and MQTT.js itself tries node after node, re-sends and de-duplicates.
"use strict";
const mqtt = require("mqtt");
const { ask, end, say, sleep, until } = require("./report.js");

const NODES = process.argv.slice(2).map((address) => {
  const [host, port] = address.split(":");
  return { host, port: Number(port), protocol: "mqtt" };
});
const TOPIC = "js/failover";
const MESSAGES = 600;

/** A client that begins with that node, and goes to the next one when its connection breaks. */
function travel(clientId, first) {
  const servers = NODES.map((_, index) => NODES[(first + index) % NODES.length]);
  const client = mqtt.connect({
    servers,
    clientId,
    protocolVersion: 5,
    clean: false,
    properties: { sessionExpiryInterval: 600, receiveMaximum: 20 },
    resubscribe: false,
    reconnectPeriod: 100,
    reconnectOnConnackError: true,
    connectTimeout: 2500,
    keepalive: 5,
  });
  client.on("connect", (connack) => say({ client: clientId, present: connack.sessionPresent }));
  client.on("error", () => {});
  client.node = () => NODES.findIndex((node) => node.port === client.options.port);
  return client;
}

async function main() {
  const received = new Set();
  const subscriber = travel("js-failover-sub", 1);
  subscriber.on("message", (topic, payload, packet) => {
    received.add(payload.toString());
    say({ received: payload.toString(), qos: packet.qos, topic });
  });
  await subscriber.subscribeAsync(TOPIC, { qos: 2 });
  const publisher = travel("js-failover-pub", 2);
  await until("the publisher to connect", () => publisher.connected);
  let underway = 0;
  let killed;
  for (let number = 0; number < MESSAGES; number++) {
    const qos = 1 + (number % 2);
    const payload = `${qos}-${Math.floor(number / 2)}`;
    underway++;
    publisher.publish(TOPIC, payload, { qos }, (error) => {
      underway--;
      if (error) say({ failed: payload, why: String(error) });
      else say({ acknowledged: payload, qos });
    });
    // Few are under way at a time, so that each kill meets some of each kind.
    await until("acknowledgements", () => underway < 20, 40000);
    if (number === MESSAGES / 4) {
      killed = subscriber.node();
      await ask("kill", killed);
    }
    if (number === MESSAGES / 2) {
      await ask("start", killed);
      killed = publisher.node();
      await ask("kill", killed);
    }
    if (number === (MESSAGES * 3) / 4) {
      await ask("start", killed);
      await ask("kill-leader", 0);
    }
  }
  await until("all acknowledgements", () => underway === 0, 40000);
  await until("everything", () => received.size === MESSAGES, 40000);
  // Time for a duplicate to arrive.
  await sleep(500);
  await publisher.endAsync();
  await subscriber.endAsync();
  say({ done: true });
}

main().then(
  () => end(0),
  (error) => {
    process.stderr.write(`${error.stack}\n`);
    end(1);
  },
);
