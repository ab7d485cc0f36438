// SCRAM-SHA-256 with MQTT.js, whose own crypto and AUTH packets know nothing of the server's. usage: node log_in.js HOST:PORT...
"use strict";
const assert = require("node:assert");
const crypto = require("node:crypto");
const mqtt = require("mqtt");
const { rules, until } = require("./report.js");

const NODES = process.argv.slice(2);
const METHOD = "SCRAM-SHA-256";

const hmac = (key, text) => crypto.createHmac("sha256", key).update(text).digest();
const sha256 = (bytes) => crypto.createHash("sha256").update(bytes).digest();

/** A client that proves its password; `client.signed` tells whether the server has proved that it knows it, too. */
function connect(node, user, password, clientId) {
  const nonce = crypto.randomBytes(18).toString("base64");
  const bare = `n=${user},r=${nonce}`;
  let expected = null;
  const client = mqtt.connect(`mqtt://${NODES[node]}`, {
    clientId,
    protocolVersion: 5,
    reconnectPeriod: 0,
    connectTimeout: 10000,
    properties: { authenticationMethod: METHOD, authenticationData: Buffer.from(`n,,${bare}`) },
  });
  client.handleAuth = (packet, done) => {
    assert.strictEqual(packet.properties.authenticationMethod, METHOD);
    const first = packet.properties.authenticationData.toString();
    const [, all, salt, rounds] = /^r=([^,]+),s=([^,]+),i=(\d+)$/.exec(first);
    assert.ok(all.startsWith(nonce) && all.length > nonce.length);
    const salted = crypto.pbkdf2Sync(password, Buffer.from(salt, "base64"), Number(rounds), 32, "sha256");
    const key = hmac(salted, "Client Key");
    const withoutProof = `c=biws,r=${all}`;
    const signed = `${bare},${first},${withoutProof}`;
    const signature = hmac(sha256(key), signed);
    const proof = Buffer.from(key.map((byte, index) => byte ^ signature[index]));
    expected = hmac(hmac(salted, "Server Key"), signed).toString("base64");
    const data = Buffer.from(`${withoutProof},p=${proof.toString("base64")}`);
    done(null, {
      cmd: "auth",
      reasonCode: 0x18,
      properties: { authenticationMethod: METHOD, authenticationData: data },
    });
  };
  client.on("connect", (connack) => {
    const data = connack.properties.authenticationData.toString();
    client.signed = data === `v=${expected}` && connack.properties.authenticationMethod === METHOD;
  });
  client.on("error", (error) => (client.failure = error));
  return client;
}

async function a_user_logs_in_through_every_node() {
  for (let node = 0; node < NODES.length; node++) {
    const client = connect(node, "user", "pencil", `js-log-in-${node}`);
    await until("the log-in", () => client.connected || client.failure);
    assert.strictEqual(client.failure, undefined);
    assert.strictEqual(client.signed, true);
    const received = new Promise((resolve) => client.once("message", (_, payload) => resolve(payload.toString())));
    await client.subscribeAsync(`js/log-in/${node}`, { qos: 1 });
    await client.publishAsync(`js/log-in/${node}`, "hello", { qos: 1 });
    assert.strictEqual(await received, "hello");
    await client.endAsync();
  }
}

async function a_wrong_password_is_refused() {
  const client = connect(0, "user", "pen", "js-wrong");
  await until("a refusal", () => client.failure);
  assert.strictEqual(client.failure.code, 0x87);
  await client.endAsync(true);
}

async function without_a_log_in_nobody_connects() {
  const client = mqtt.connect(`mqtt://${NODES[0]}`, {
    protocolVersion: 5,
    reconnectPeriod: 0,
    username: "user",
    password: "pencil",
  });
  client.on("error", (error) => (client.failure = error));
  await until("a refusal", () => client.failure);
  assert.strictEqual(client.failure.code, 0x87);
  await client.endAsync(true);
}

rules(a_user_logs_in_through_every_node, a_wrong_password_is_refused, without_a_log_in_nobody_connects);
