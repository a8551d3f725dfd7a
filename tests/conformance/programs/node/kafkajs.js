// KafkaJS. What such programs are is in tests/support/clients/programs.py.
"use strict";

const { isDeepStrictEqual } = require("node:util");
const { CompressionCodecs, CompressionTypes, Kafka, Partitioners, logLevel } = require("kafkajs");

CompressionCodecs[CompressionTypes.Snappy] = require("kafkajs-snappy");

const PATIENCE_MS = 30_000;
const [bootstrap, prefix, ...names] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.NOTHING });

const scenarios = {
  async records(topic) {
    const message = { key: "key", value: "value", headers: { header: "text" }, timestamp: "1234567890123" };
    await producing({}, (producer) => producer.send({ topic, messages: [message, { key: "key", value: null }] }));
    const [first, second] = await read(topic, 2);
    check("record", ["key", "value"], [first.key.toString(), first.value.toString()]);
    check("timestamp and headers", ["1234567890123", "text"], [first.timestamp, first.headers.header.toString()]);
    check("tombstone", null, second.value);
  },

  none: (topic) => compressed(topic, CompressionTypes.None),
  gzip: (topic) => compressed(topic, CompressionTypes.GZIP),
  snappy: (topic) => compressed(topic, CompressionTypes.Snappy),

  async idempotence(topic) {
    await producing({ idempotent: true }, async (producer) => {
      for (let first = 0; first < 300; first += 10) await send(producer, topic, first, 10);
    });
    checkNumbers(await read(topic, 300), 0, 300);
  },

  async commit(topic) {
    await producing(transactional(topic), async (producer) => {
      for (let first = 0; first < 30; first += 10) {
        const transaction = await producer.transaction();
        await send(transaction, topic, first, 10);
        await transaction.commit();
      }
    });
    checkNumbers(await read(topic, 30), 0, 30);
  },

  async abort(topic) {
    await producing(transactional(topic), async (producer) => {
      const aborted = await producer.transaction();
      await send(aborted, topic, 0, 10);
      await aborted.abort();
      const committed = await producer.transaction();
      await send(committed, topic, 10, 10);
      await committed.commit();
    });
    checkNumbers(await read(topic, 10), 10, 10);
    checkNumbers(await read(topic, 20, true), 0, 20);
  },

  async offsets(topic) {
    await withAdmin((admin) => producing(transactional(topic), async (producer) => {
      const first = await producer.transaction();
      await send(first, topic, 0, 10);
      await first.commit();
      for (const [end, offset, expected] of [["abort", "7", "-1"], ["commit", "10", "10"]]) {
        const transaction = await producer.transaction();
        await send(transaction, topic, 10, 1);
        const topics = [{ topic, partitions: [{ partition: 0, offset }] }];
        await transaction.sendOffsets({ consumerGroupId: topic, topics });
        await transaction[end]();
        const [found] = await admin.fetchOffsets({ groupId: topic, topics: [topic] });
        check("offset", expected, found.partitions.find((each) => each.partition === 0).offset);
      }
    }));
  },

  async fencing(topic) {
    await producing(transactional(topic), async (older) => {
      const first = await older.transaction();
      await send(first, topic, 0, 5);
      await producing(transactional(topic), async (newer) => {
        const second = await newer.transaction();
        await send(second, topic, 5, 5);
        await second.commit();
      });
      const refusal = await first.commit().then(() => null, (error) => error);
      const fenced = ["INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"];
      check("fenced", true, refusal !== null && fenced.includes(refusal.type));
    });
    checkNumbers(await read(topic, 5), 5, 5);
  },

  async group(topic) {
    await producing({}, (producer) => send(producer, topic, 0, 15));
    const first = await member(topic, topic);
    checkNumbers(await first.consumed(15), 0, 15);
    await first.consumer.commitOffsets([{ topic, partition: 0, offset: "10" }]);
    await first.consumer.disconnect();
    const second = await member(topic, topic);
    checkNumbers(await second.consumed(5), 10, 5);
    await second.consumer.disconnect();
  },

  async rebalance(topic) {
    const first = await member(topic, topic);
    await until(() => first.partitions === 2, "the first has both");
    const second = await member(topic, topic);
    await until(() => first.partitions === 1 && second.partitions === 1, "each has one");
    await second.consumer.disconnect();
    await until(() => first.partitions === 2, "the first has both again");
    await first.consumer.disconnect();
  },

  admin: (topic) => withAdmin(async (admin) => {
    const created = `${topic}-created`;
    const configEntries = [{ name: "retention.ms", value: "60000" }];
    await admin.createTopics({ topics: [{ topic: created, numPartitions: 1, configEntries }] });
    await until(async () => (await admin.listTopics()).includes(created), "the new topic is listed");
    const resources = [{ type: 2, name: created, configNames: ["retention.ms"] }];
    check("setting", "60000", (await admin.describeConfigs({ resources })).resources[0].configEntries[0].configValue);
    await producing({}, (producer) => send(producer, created, 0, 5));
    check("end", "5", (await admin.fetchTopicOffsets(created))[0].high);
    await admin.createPartitions({ topicPartitions: [{ topic: created, count: 2 }] });
    const count = async () => (await admin.fetchTopicMetadata({ topics: [created] })).topics[0].partitions.length;
    await until(async () => (await count()) === 2, "it has grown");
    await admin.deleteTopics({ topics: [created] });
    await until(async () => !(await admin.listTopics()).includes(created), "the topic is gone");
  }),
};

async function compressed(topic, compression) {
  await producing({}, (producer) => send(producer, topic, 0, 100, compression));
  checkNumbers(await read(topic, 100), 0, 100);
}

// --- what is done with clients

const transactional = (transactionalId) => ({ transactionalId, idempotent: true, maxInFlightRequests: 1 });

async function producing(settings, work) {
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, ...settings });
  await producer.connect();
  try {
    return await work(producer);
  } finally {
    await producer.disconnect();
  }
}

async function withAdmin(work) {
  const admin = kafka.admin();
  await admin.connect();
  try {
    return await work(admin);
  } finally {
    await admin.disconnect();
  }
}

function numbers(first, count) {
  return Array.from({ length: count }, (_, index) => String(first + index).padStart(40, "0"));
}

async function send(sender, topic, first, count, compression) {
  const messages = numbers(first, count).map((value) => ({ value, partition: 0 }));
  await sender.send({ topic, messages, compression });
}

async function member(groupId, topic, readUncommitted = false) {
  const consumer = kafka.consumer({ groupId, readUncommitted, heartbeatInterval: 200, maxWaitTimeInMs: 200 });
  const found = [];
  const one = { consumer, partitions: 0 };
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    one.partitions = (payload.memberAssignment[topic] || []).length;
  });
  one.consumed = async (count) => {
    await until(() => found.length >= count, `${count} records arrive`);
    return found;
  };
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({ autoCommit: false, eachMessage: async ({ message }) => void found.push(message) });
  return one;
}

// It has no consumer without a group.
async function read(topic, count, readUncommitted = false) {
  const reader = await member(`${topic}-reader-${readUncommitted}`, topic, readUncommitted);
  try {
    return await reader.consumed(count);
  } finally {
    await reader.consumer.disconnect();
  }
}

async function until(condition, what) {
  const deadline = Date.now() + PATIENCE_MS;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`not within ${PATIENCE_MS} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

function checkNumbers(found, first, count) {
  check("values", numbers(first, count), found.map((message) => message.value.toString()));
}

function check(what, expected, found) {
  if (!isDeepStrictEqual(expected, found)) throw new Error(`${what}: expected ${expected}, found ${found}`);
}

Promise.all(names.map(async (name) => {
  let error = null;
  try {
    await scenarios[name](`${prefix}-${name}`);
  } catch (problem) {
    error = problem.stack;
  }
  console.log(JSON.stringify({ scenario: name, error }));
})).then(() => process.exit(0));
