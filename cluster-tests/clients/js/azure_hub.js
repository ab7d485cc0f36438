// Twins with azure-iothub and azure-iot-device-mqtt, unmodified. usage: azure_hub.js HOST SOCKETS
//
// HOST leads to any node that lives, at the ports 443 (HTTPS) and 8883 (MQTT), SOCKETS to its WebSockets at port 443,
// which is the only one the library can use. The environment has the policy's key (HUB_KEY), the CA's file (HUB_CA),
// which NODE_EXTRA_CA_CERTS names as well, and the directory of the devices' certificates (HUB_CERTIFICATES).
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const { X509Certificate } = require("node:crypto");
const { setTimeout: sleep } = require("node:timers/promises");
const { Registry } = require("azure-iothub");
const { Client } = require("azure-iot-device");
const { Mqtt, MqttWs } = require("azure-iot-device-mqtt");
const { ask, until, rules } = require("./report");

const [host, sockets] = process.argv.slice(2);
const ca = fs.readFileSync(process.env.HUB_CA, "utf8");
const keys = [3, 4].map((number) => Buffer.alloc(32, number).toString("base64"));
const hub = Registry.fromConnectionString(
  `HostName=${host};SharedAccessKeyName=all;SharedAccessKey=${process.env.HUB_KEY}`,
);
const authentication = { type: "sas", symmetricKey: { primaryKey: keys[0], secondaryKey: keys[1] } };

const equal = (found, wanted) => {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) {
    throw new Error(`${JSON.stringify(found)} is not ${JSON.stringify(wanted)}`);
  }
};

/** The name of the error with which a call is refused. */
async function refusal(promise) {
  try {
    await promise;
  } catch (error) {
    return error.name;
  }
  throw new Error("it is not refused");
}

async function identities_are_made_and_changed() {
  const { responseBody: device } = await hub.create({ deviceId: "js", authentication });
  equal(device.authentication.symmetricKey.primaryKey, keys[0]);
  equal(await refusal(hub.create({ deviceId: "js" })), "DeviceAlreadyExistsError");
  const changed = await hub.update({ deviceId: "js", statusReason: "known", authentication });
  equal(changed.responseBody.statusReason, "known");
  await hub.addModule({ deviceId: "js", moduleId: "m", authentication });
  const { responseBody: modules } = await hub.getModulesOnDevice("js");
  equal(modules.map((module) => module.moduleId), ["m"]);
  equal(await refusal(hub.get("absent")), "DeviceNotFoundError");
  await hub.create({ deviceId: "gone" });
  await hub.delete("gone");
}

async function twins_are_patched_and_guarded() {
  const { responseBody: twin } = await hub.getTwin("js");
  const { responseBody: patched } = await hub.updateTwin("js", { tags: { site: "43" } }, twin.etag);
  equal(patched.tags, { site: "43" });
  equal(await refusal(hub.updateTwin("js", { tags: { site: "44" } }, twin.etag)), "InvalidEtagError");
}

async function twins_are_found_page_by_page() {
  for (let number = 0; number < 3; number += 1) await hub.create({ deviceId: `js-page-${number}` });
  const query = hub.createQuery("SELECT deviceId FROM devices WHERE deviceId >= 'js-page-' AND deviceId < 'js-page-x'", 2);
  const found = [];
  const next = () => new Promise((resolve, reject) => {
    query.next((error, rows) => (error ? reject(error) : resolve(rows)));
  });
  while (query.hasMoreResults) found.push(...(await next()).map((row) => row.deviceId));
  equal(found, ["js-page-0", "js-page-1", "js-page-2"]);
}

/** The node of a client dies. */
async function goesOn(device, client, options) {
  await client.setOptions({ ca, ...options });
  await client.open();
  const twin = await client.getTwin();
  const heard = [];
  twin.on("properties.desired", (desired) => heard.push(desired.number));
  const report = (number) => new Promise((resolve, reject) => {
    twin.properties.reported.update({ number }, (error) => (error ? reject(error) : resolve()));
  });
  const desire = (number) => hub.updateTwin(device, { properties: { desired: { number } } }, "*");
  await report(0);
  await desire(0);
  await until("a desired property", () => heard.includes(0));
  await ask("kill", 0);
  // What it sends over a WebSocket that is closing is lost without a word: it is asked again.
  const reported = () => Promise.race([report(1).then(() => true), sleep(3000, false)]);
  await until("a report", reported, 50_000);
  equal((await hub.getTwin(device)).responseBody.properties.reported.number, 1);
  await desire(1);
  await until("a desired property", () => heard.includes(1));
  await ask("start", 0);
  await client.close();
}

async function a_device_goes_on_when_its_node_dies() {
  const from = `HostName=${host};DeviceId=js;SharedAccessKey=${keys[0]}`;
  await goesOn("js", Client.fromConnectionString(from, Mqtt), {});
}

const file = (name) => fs.readFileSync(path.join(process.env.HUB_CERTIFICATES, name), "utf8");

async function a_device_shows_its_own_certificate_over_websocket() {
  const [cert, key] = [file("own.pem"), file("own.key")];
  const primaryThumbprint = new X509Certificate(cert).fingerprint256.replaceAll(":", "");
  const x509Thumbprint = { primaryThumbprint, secondaryThumbprint: primaryThumbprint };
  await hub.create({ deviceId: "js-own", authentication: { type: "selfSigned", x509Thumbprint } });
  const client = Client.fromConnectionString(`HostName=${sockets};DeviceId=js-own;x509=true`, MqttWs);
  await goesOn("js-own", client, { cert, key });
}

async function a_device_shows_a_certificate_of_the_ca() {
  await hub.create({ deviceId: "js-ca", authentication: { type: "certificateAuthority" } });
  const client = Client.fromConnectionString(`HostName=${host};DeviceId=js-ca;x509=true`, Mqtt);
  await goesOn("js-ca", client, { cert: file("client-js-ca.pem"), key: file("client-js-ca.key") });
}

async function a_device_speaks_over_websocket() {
  await hub.create({ deviceId: "js-ws", authentication });
  const from = `HostName=${sockets};DeviceId=js-ws;SharedAccessKey=${keys[0]}`;
  await goesOn("js-ws", Client.fromConnectionString(from, MqttWs), {});
}

rules(
  identities_are_made_and_changed,
  twins_are_patched_and_guarded,
  twins_are_found_page_by_page,
  a_device_goes_on_when_its_node_dies,
  a_device_shows_its_own_certificate_over_websocket,
  a_device_shows_a_certificate_of_the_ca,
  a_device_speaks_over_websocket,
);
