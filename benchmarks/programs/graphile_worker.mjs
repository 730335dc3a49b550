// graphile-worker, with the settings of the page on performance in its documentation.
import { load, main, SINGLY } from "./protocol.mjs";

const { Logger, makeWorkerUtils, run } = load("graphile-worker");

const worker = {
  ...(SINGLY
    ? { concurrentJobs: 1 }
    : {
        concurrentJobs: 24,
        maxPoolSize: 25,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      }),
  logger: new Logger(() => () => {}),
};

async function withUtils(dsn, use) {
  const utils = await makeWorkerUtils({ preset: { worker: { ...worker, connectionString: dsn } } });
  await use(utils);
  await utils.release();
}

main({
  install: (dsn) => withUtils(dsn, (utils) => utils.migrate()),

  send: (dsn, items) =>
    withUtils(dsn, async (utils) => {
      for await (const sent of items) await utils.addJob("item", { sent });
    }),

  bulk: (dsn, items) =>
    withUtils(dsn, (utils) =>
      utils.addJobs(items.map((sent) => ({ identifier: "item", payload: { sent } }))),
    ),

  work: async (dsn, log) => {
    const runner = await run({
      preset: { worker: { ...worker, connectionString: dsn } },
      taskList: { item: async ({ sent }) => log.take(sent) },
      noHandleSignals: true,
    });
    log.ready();
    await log.complete;
    await runner.stop();
  },
});
