// Runs the page browser.html in headless Chromium. usage: node browser.js CERTIFICATE URL...
//
// The page is served from here, under the host name of the URLs, so that it is of their origin. What it says comes as the
// body of a POST, and goes to the test as a script's own words do.
"use strict";
const { spawn } = require("node:child_process");
const crypto = require("node:crypto");
const fs = require("node:fs");
const http = require("node:http");
const os = require("node:os");
const path = require("node:path");
const { ask, end, say } = require("./report.js");

const [certificate, ...urls] = process.argv.slice(2);
const files = {
  "/": ["text/html", path.join(__dirname, "browser.html")],
  "/page.js": ["text/javascript", path.join(__dirname, "browser_page.js")],
  "/mqtt.js": ["text/javascript", require.resolve("mqtt/dist/mqtt.min")],
};

/** What the page says, or asks for. */
async function hear(said) {
  if (said.ask !== undefined) await ask(said.ask, said.node);
  else say(said);
  if (said.done) finish(0);
}

const server = http.createServer((request, response) => {
  const { pathname } = new URL(request.url, "http://localhost");
  if (request.method === "POST") {
    let body = "";
    request.on("data", (part) => (body += part));
    request.on("end", async () => {
      await hear(JSON.parse(body));
      response.end();
    });
    return;
  }
  const [type, file] = files[pathname] ?? [];
  if (file === undefined) {
    response.writeHead(404).end();
    return;
  }
  response.writeHead(200, { "Content-Type": type });
  fs.createReadStream(file).pipe(response);
});

const profile = fs.mkdtempSync(path.join(os.tmpdir(), "browser-"));
let chromium;

function finish(code) {
  chromium.removeAllListeners("exit");
  chromium.on("exit", () => {
    fs.rmSync(profile, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
    end(code);
  });
  // With the processes that it has started.
  process.kill(-chromium.pid, "SIGKILL");
}

server.listen(0, "127.0.0.1", () => {
  const { port } = server.address();
  const { publicKey } = new crypto.X509Certificate(fs.readFileSync(certificate));
  const key = crypto.createHash("sha256").update(publicKey.export({ type: "spki", format: "der" })).digest("base64");
  const page = `http://localhost:${port}/?${new URLSearchParams(urls.map((url) => ["url", url]))}`;
  const flags = ["--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];
  flags.push("--disable-component-update", "--disable-sync", `--user-data-dir=${profile}`);
  // The authority is the test's own: of all certificates that no authority of the browser has signed, that one is taken.
  flags.push(`--ignore-certificate-errors-spki-list=${key}`);
  // Root has no sandbox.
  if (process.getuid() === 0) flags.push("--no-sandbox");
  chromium = spawn("chromium", [...flags, page], { stdio: "ignore", detached: true });
  chromium.on("error", (error) => {
    process.stderr.write(`chromium cannot be started: ${error}\n`);
    end(1);
  });
  chromium.on("exit", (code) => {
    process.stderr.write(`chromium has ended with ${code}\n`);
    end(1);
  });
});
