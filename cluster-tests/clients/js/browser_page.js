// What MQTT.js does in a browser: each URL is a WebSocket of another node. It reports by POST to where it came from.
/* global mqtt */

const URLS = new URLSearchParams(location.search).getAll("url").map((url) => new URL(url));
/** What clients are called, and topics: other ones over each protocol. */
const NAME = `browser-${URLS[0].protocol.slice(0, -1)}`;
const SIZES = [1, 125, 126, 70000, 300000];

async function say(fields) {
  await fetch("/", { method: "POST", body: JSON.stringify(fields) });
}

const ask = (what, node) => say({ ask: what, node });
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(what, condition, within = 20000) {
  const deadline = Date.now() + within;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`waited ${within} ms in vain for ${what}`);
    await sleep(5);
  }
}

function equal(found, expected) {
  const [one, other] = [JSON.stringify(found), JSON.stringify(expected)];
  if (one !== other) throw new Error(`found ${one}, expected ${other}`);
}

/** The client's settings for a URL: host, port, path and protocol. */
const server = (url) => ({
  host: url.hostname,
  port: Number(url.port),
  protocol: url.protocol.slice(0, -1),
});

/** A client that keeps what it is sent. It goes from the first node to the next when its connection breaks. */
function connect(clientId, urls, options = {}) {
  const client = mqtt.connect({
    servers: urls.map(server),
    // With a list of servers MQTT.js forgets `path`.
    transformWsUrl: (url) => new URL("/mqtt", url).href,
    clientId,
    protocolVersion: 5,
    connectTimeout: 5000,
    reconnectPeriod: 0,
    ...options,
  });
  client.came = [];
  client.present = [];
  client.on("error", (error) => (client.failure = error));
  client.on("connect", (connack) => client.present.push(connack.sessionPresent));
  client.on("message", (topic, payload, { qos }) => client.came.push({ topic, payload, qos }));
  client.ready = async () => {
    try {
      await until(`${clientId} to connect`, () => client.connected);
    } catch (error) {
      throw new Error(`${error.message}: ${client.failure}`);
    }
  };
  return client;
}

/** Every QoS and size of a frame, over each listener. */
async function every_qos_and_size_arrives_over_each_listener() {
  for (const version of [5, 4]) {
    for (const [index, url] of URLS.entries()) {
      const client = connect(`${NAME}-${version}-${index}`, [url], { protocolVersion: version });
      await client.ready();
      const topic = `${NAME}/${version}/${index}`;
      await client.subscribeAsync(topic, { qos: 2 });
      for (const qos of [0, 1, 2]) {
        for (const size of SIZES) {
          client.came.length = 0;
          await client.publishAsync(topic, new Uint8Array(size).fill(qos), { qos });
          await until(`${size} bytes at QoS ${qos}`, () => client.came.length > 0);
          const [{ payload, qos: found }] = client.came;
          equal([payload.length, found, payload.every((byte) => byte === qos)], [size, qos, true]);
        }
      }
      await client.endAsync();
    }
  }
}

/** What is published at one node is received at the others. */
async function a_message_reaches_the_other_nodes() {
  const all = URLS.map((url, index) => connect(`${NAME}-other-${index}`, [url]));
  for (const client of all) {
    await client.ready();
    await client.subscribeAsync(`${NAME}/others`, { qos: 1 });
  }
  for (const client of all) await client.publishAsync(`${NAME}/others`, client.options.clientId, { qos: 1 });
  const names = all.map((client) => client.options.clientId);
  for (const client of all) {
    await until("all messages", () => client.came.length === all.length);
    equal(client.came.map(({ payload }) => new TextDecoder().decode(payload)).sort(), names);
    await client.endAsync();
  }
}

/** The node of the client's connection is killed: MQTT.js finds another one, and its session there. */
async function a_killed_node_is_left_for_another_one() {
  const durable = { clean: false, properties: { sessionExpiryInterval: 600 }, reconnectPeriod: 100, resubscribe: false };
  const client = connect(`${NAME}-travels`, [URLS[0], URLS[1], URLS[2]], { ...durable, reconnectOnConnackError: true });
  await client.ready();
  await client.subscribeAsync(`${NAME}/travels`, { qos: 2 });
  const other = connect(`${NAME}-stays`, [URLS[1]]);
  await other.ready();
  await other.publishAsync(`${NAME}/travels`, "before", { qos: 2 });
  await until("the first message", () => client.came.length === 1);
  await ask("kill", 0);
  try {
    await other.publishAsync(`${NAME}/travels`, "meanwhile", { qos: 2 });
    await until("the second message", () => client.came.length >= 2);
    await client.publishAsync(`${NAME}/travels`, "after", { qos: 2 });
    await until("the third message", () => client.came.length >= 3);
  } finally {
    await ask("start", 0);
  }
  const text = client.came.map(({ payload, qos }) => `${new TextDecoder().decode(payload)} ${qos}`);
  equal(text, ["before 2", "meanwhile 2", "after 2"]);
  equal([client.present[0], client.present.at(-1), client.present.length > 1], [false, true, true]);
  await client.endAsync();
  await other.endAsync();
}

/** A page of another host may not connect: this one is of localhost. */
async function a_page_of_another_host_is_refused() {
  for (const { protocol, port } of URLS) {
    const socket = new WebSocket(`${protocol}//127.0.0.1:${port}/mqtt`, "mqtt");
    const opened = new Promise((resolve) => (socket.onopen = () => resolve(true)));
    const failed = new Promise((resolve) => (socket.onerror = () => resolve(false)));
    equal(await Promise.race([opened, failed]), false);
  }
}

for (const rule of [
  every_qos_and_size_arrives_over_each_listener,
  a_message_reaches_the_other_nodes,
  a_page_of_another_host_is_refused,
  a_killed_node_is_left_for_another_one,
]) {
  try {
    await rule();
    await say({ rule: rule.name, holds: true });
  } catch (error) {
    await say({ rule: rule.name, holds: false, why: error.stack || String(error) });
  }
}
await say({ done: true });
