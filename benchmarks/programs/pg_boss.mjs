// pg-boss, woken by NOTIFY, and fetching batch after batch while there are more.
import { load, main, SINGLY } from "./protocol.mjs";

const { PgBoss } = load("pg-boss");

// Of batchSize its documentation says no number; by default it is 1.
const options = { batchSize: 100, burstWhenBatchFull: true };

async function withBoss(dsn, use) {
  const boss = new PgBoss({ connectionString: dsn, useListenNotify: true });
  boss.on("error", console.error);
  await boss.start();
  await use(boss);
  await boss.stop();
}

main({
  install: (dsn) => withBoss(dsn, (boss) => boss.createQueue("item", { notify: true })),

  send: (dsn, items) =>
    withBoss(dsn, async (boss) => {
      for await (const sent of items) await boss.send("item", { sent });
    }),

  bulk: (dsn, items) =>
    withBoss(dsn, (boss) =>
      boss.insert(
        "item",
        items.map((sent) => ({ data: { sent } })),
      ),
    ),

  work: (dsn, log) =>
    withBoss(dsn, async (boss) => {
      log.ready();
      if (SINGLY) {
        // Its workers pause after each job unless they take several.
        for (let jobs; (jobs = await boss.fetch("item")).length; await boss.complete("item", jobs[0].id))
          log.take(jobs[0].data.sent);
        return;
      }
      await boss.work("item", options, async (jobs) => {
        for (const job of jobs) log.take(job.data.sent);
      });
      await log.complete;
    }),
});
