// What the programs in JavaScript have in common; the same as protocol.py.
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

// Packages are where `benchmarks._program` has installed them.
const require = createRequire(`${process.env.NODE_PACKAGES}/package.json`);
export const load = (name) => require(name);

const now = () => Number(process.hrtime.bigint()) / 1e9;
// Resolves when it is written: a process that exits earlier loses what the pipe has not taken.
const say = (values) =>
  new Promise((resolve) => process.stdout.write(`${JSON.stringify(values)}\n`, resolve));

class Log {
  began = 0;
  sent = [];
  handled = [];

  constructor(count, seconds) {
    this.count = count;
    this.complete = new Promise((resolve) => (this.completed = resolve));
    setTimeout(async () => {
      await this.report();
      process.exit(0);
    }, seconds * 1000).unref();
  }

  ready() {
    console.log("ready");
    this.began = now();
  }

  take(sent) {
    this.sent.push(sent);
    if (this.handled.push(now()) === this.count) this.completed();
  }

  report() {
    const { began, sent, handled } = this;
    return say({ began, sent, handled });
  }
}

// Whether workers take one item after the other, and do nothing else meanwhile.
export const SINGLY = "SINGLY" in process.env;

// When each item was sent, each when it is due, or at once if that has passed.
async function* pace(count, rate) {
  let due = now();
  for (let n = 0; n < count; n++) {
    if (due > now()) await sleep((due - now()) * 1000);
    yield now();
    if (rate) due += 1 / rate;
  }
}

async function timed(send) {
  const began = now();
  await send();
  await say({ seconds: now() - began });
}

export async function main({ install, send, bulk, work }) {
  const [command, dsn, count, last] = process.argv.slice(2);
  if (command === "install") {
    await install(dsn);
  } else if (command === "send") {
    await timed(() => send(dsn, pace(Number(count), Number(last))));
  } else if (command === "bulk") {
    await timed(() => bulk(dsn, Array.from({ length: Number(count) }, now)));
  } else {
    const log = new Log(Number(count), Number(last));
    await work(dsn, log);
    await log.report();
  }
  process.exit(0);
}
