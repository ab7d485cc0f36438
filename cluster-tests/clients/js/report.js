// What a script tells the test that runs it: one JSON object per line on standard output, and one line back for each
// "ask".
"use strict";
const readline = require("node:readline");

function say(fields) {
  process.stdout.write(JSON.stringify(fields) + "\n");
}

const answers = [];
const waiting = [];
const lines = readline.createInterface({ input: process.stdin });
lines.on("line", (line) => (waiting.length ? waiting.shift()(line) : answers.push(line)));

/** Asks the test to do something to a node ("kill", "start"), and waits until it is done. */
async function ask(what, node) {
  say({ ask: what, node });
  const answer = answers.length ? answers.shift() : await new Promise((resolve) => waiting.push(resolve));
  if (answer.trim() !== "done") throw new Error(`${what} ${node} was answered ${answer}`);
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits for a condition with a deadline. */
async function until(what, condition, within = 15000) {
  const deadline = Date.now() + within;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`waited ${within} ms in vain for ${what}`);
    await sleep(5);
  }
}

/** Shows each rule under its own name; a broken one does not keep the others from being looked at. */
async function rules(...functions) {
  for (const rule of functions) {
    try {
      await rule();
      say({ rule: rule.name, holds: true });
    } catch (error) {
      say({ rule: rule.name, holds: false, why: error.stack || String(error) });
    }
  }
  end();
}

/** Ends the process when everything said has been written. */
function end(code = 0) {
  process.stdout.write("", () => process.exit(code));
}

module.exports = { say, ask, sleep, until, rules, end };
