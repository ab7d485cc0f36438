// Everyday MQTT with MQTT.js. usage: node everyday.js HOST:PORT...
"use strict";
const assert = require("node:assert");
const mqtt = require("mqtt");
const { rules, sleep, until } = require("./report.js");

const NODES = process.argv.slice(2);

/** A connected client, with what it was sent. */
async function connect(clientId, node = 0, options = {}) {
  const { version = 5, expiry = 0, ...rest } = options;
  const properties = version === 5 ? { properties: { sessionExpiryInterval: expiry } } : {};
  const client = mqtt.connect(`mqtt://${NODES[node % NODES.length]}`, {
    clientId,
    protocolVersion: version,
    clean: true,
    reconnectPeriod: 0,
    connectTimeout: 10000,
    ...properties,
    ...rest,
  });
  client.messages = [];
  client.on("message", (topic, payload, packet) => client.messages.push({ topic, payload: payload.toString(), packet }));
  // A connection that is cut on purpose may say so.
  client.on("error", (error) => (client.failure = error));
  const connack = new Promise((resolve) => client.on("connect", resolve));
  await until(`${clientId} to connect`, () => client.connected || client.failure);
  if (client.failure) throw client.failure;
  client.present = (await connack).sessionPresent;
  client.next = async () => {
    await until(`a message for ${clientId}`, () => client.messages.length > 0);
    return client.messages.shift();
  };
  client.nothing = async () => {
    await sleep(300);
    assert.deepStrictEqual(client.messages, [], `${clientId} was sent something`);
  };
  return client;
}

async function every_qos_arrives_through_every_node() {
  for (const version of [5, 4]) {
    for (const qos of [0, 1, 2]) {
      const topic = `js/qos/${version}/${qos}`;
      const subscriber = await connect(`js-sub-${version}-${qos}`, 0, { version });
      const [granted] = await subscriber.subscribeAsync(topic, { qos });
      assert.strictEqual(granted.qos, qos);
      for (let node = 0; node < NODES.length; node++) {
        const publisher = await connect(`js-pub-${version}-${qos}-${node}`, node, { version });
        await publisher.publishAsync(topic, `${node}`, { qos });
        const message = await subscriber.next();
        assert.deepStrictEqual([message.payload, message.packet.qos], [`${node}`, qos]);
        await publisher.endAsync();
      }
      await subscriber.nothing();
      await subscriber.endAsync();
    }
  }
}

async function retained_messages_are_kept_replaced_and_deleted() {
  const publisher = await connect("js-retain-pub");
  for (const payload of ["1", "2"]) await publisher.publishAsync("js/retain", payload, { qos: 1, retain: true });
  for (let node = 0; node < NODES.length; node++) {
    const reader = await connect(`js-retain-${node}`, node);
    await reader.subscribeAsync("js/retain", { qos: 1 });
    const message = await reader.next();
    assert.deepStrictEqual([message.payload, message.packet.retain], ["2", true]);
    await reader.nothing();
    await reader.endAsync();
  }
  await publisher.publishAsync("js/retain", "", { qos: 1, retain: true });
  const late = await connect("js-retain-late", 1);
  await late.subscribeAsync("js/retain", { qos: 1 });
  await late.nothing();
  await late.endAsync();
  await publisher.endAsync();
}

async function a_will_comes_after_a_cut_and_not_after_a_farewell() {
  for (const version of [5, 4]) {
    const observer = await connect(`js-will-observer-${version}`, 1, { version });
    await observer.subscribeAsync(`js/will/${version}/#`, { qos: 1 });
    for (const name of ["polite", "cut"]) {
      const will = { topic: `js/will/${version}/${name}`, payload: name, qos: 1, retain: false };
      const client = await connect(`js-will-${name}-${version}`, 0, { version, will });
      if (name === "polite") await client.endAsync();
      else client.stream.destroy();
    }
    assert.strictEqual((await observer.next()).payload, "cut");
    await observer.nothing();
    await observer.endAsync();
  }
}

async function a_session_is_resumed_on_another_node() {
  for (const version of [5, 4]) {
    const [name, topic] = [`js-resume-${version}`, `js/resume/${version}`];
    // Whatever an earlier run left.
    await (await connect(name, 0, { version })).endAsync();
    const durable = { version, clean: false, expiry: 600 };
    const first = await connect(name, 0, durable);
    assert.strictEqual(first.present, false);
    await first.subscribeAsync(topic, { qos: 2 });
    await first.endAsync();
    const publisher = await connect(`${name}-pub`, 1, { version });
    for (let number = 0; number < 20; number++) {
      await publisher.publishAsync(topic, `${number}`, { qos: 1 + (number % 2) });
    }
    const second = await connect(name, 2, durable);
    assert.strictEqual(second.present, true);
    await until("what was queued", () => second.messages.length >= 20);
    const got = second.messages.splice(0).map((message) => Number(message.payload));
    for (const odd of [0, 1]) {
      const ofQos = got.filter((number) => number % 2 === odd);
      assert.deepStrictEqual(ofQos, [...ofQos].sort((a, b) => a - b));
    }
    assert.strictEqual(new Set(got).size, 20);
    await second.nothing();
    await second.endAsync();
    const last = await connect(name, 1, { version });
    assert.strictEqual(last.present, false);
    await last.endAsync();
    await publisher.endAsync();
  }
}

async function a_shared_subscription_gives_each_message_to_one() {
  const members = [];
  for (let number = 0; number < 3; number++) members.push(await connect(`js-shared-${number}`, number));
  for (const member of members) await member.subscribeAsync("$share/js/js/shared", { qos: 1 });
  const publisher = await connect("js-shared-pub");
  for (let number = 0; number < 60; number++) {
    await publisher.publishAsync("js/shared", `${number}`, { qos: 1 + (number % 2) });
  }
  const all = () => members.flatMap((member) => member.messages.map((message) => Number(message.payload)));
  await until("all messages", () => all().length >= 60);
  await sleep(300);
  assert.deepStrictEqual(all().sort((a, b) => a - b), [...Array(60).keys()]);
  for (const client of [...members, publisher]) await client.endAsync();
}

async function properties_and_topic_aliases_pass() {
  const subscriber = await connect("js-properties", 0);
  const publisher = await connect("js-properties-pub", 1, { autoAssignTopicAlias: true });
  await subscriber.subscribeAsync("js/properties", { qos: 1, properties: { subscriptionIdentifier: 42 } });
  const properties = {
    payloadFormatIndicator: true,
    messageExpiryInterval: 60,
    contentType: "text/plain",
    responseTopic: "js/answer",
    correlationData: Buffer.from([0, 1]),
    userProperties: { a: ["1", "2"] },
  };
  for (let round = 0; round < 3; round++) {
    await publisher.publishAsync("js/properties", "x", { qos: 1, properties: { ...properties } });
    const got = (await subscriber.next()).packet.properties;
    assert.ok(got.messageExpiryInterval > 50 && got.messageExpiryInterval <= 60);
    for (const name of ["payloadFormatIndicator", "contentType", "responseTopic"]) {
      assert.strictEqual(got[name], properties[name]);
    }
    assert.deepStrictEqual([...got.correlationData], [0, 1]);
    assert.deepStrictEqual([...got.userProperties.a], ["1", "2"]);
    assert.strictEqual(got.subscriptionIdentifier, 42);
  }
  await subscriber.endAsync();
  await publisher.endAsync();
}

async function a_second_client_of_a_name_takes_over() {
  const first = await connect("js-same", 0);
  let reason;
  first.on("disconnect", (packet) => (reason = packet.reasonCode));
  const second = await connect("js-same", 1);
  await until("the first to be told", () => reason === 0x8e && !first.connected);
  assert.ok(second.connected);
  await second.endAsync();
}

rules(
  every_qos_arrives_through_every_node,
  retained_messages_are_kept_replaced_and_deleted,
  a_will_comes_after_a_cut_and_not_after_a_farewell,
  a_session_is_resumed_on_another_node,
  a_shared_subscription_gives_each_message_to_one,
  properties_and_topic_aliases_pass,
  a_second_client_of_a_name_takes_over,
);
