// Makes the calls of client_driver.py with the official client for Node: a line each.
'use strict';
const readline = require('node:readline');
const { Producer, SimpleConsumer, PushConsumer, ConsumeResult } = require('rocketmq-client-nodejs');

const silent = { info() {}, warn() {}, error() {}, debug() {}, close() {} };
const producers = new Map();
const consumers = new Map();
const pushes = [];
const views = [];
let options;

function say(verb, fields = {}) {
  const shown = Object.entries(fields).map(([k, v]) => `${k}=${String(v).replace(/\s+/g, ' ')}`);
  process.stdout.write([verb, ...shown].join('\t') + '\n');
}

function show(verb, n, one) {
  say(verb, {
    n, id: one.messageId, body: one.body.toString(), tag: one.tag ?? '', keys: one.keys.join(','),
    properties: [...one.properties].map(([k, v]) => `${k}:${v}`).join(','),
    attempt: one.deliveryAttempt, at_ms: Date.now(),
    due_ms: one.deliveryTimestamp ? one.deliveryTimestamp.getTime() : 0,
  });
}

async function made(map, name, create) {
  if (!map.has(name)) {
    const one = create();
    await one.startup();
    map.set(name, one);
  }
  return map.get(name);
}

const resolutions = { commit: 1, rollback: 2 };
const checker = {
  async check(view) {
    show('checked', -1, view);
    return view.body.toString().startsWith('keep') ? resolutions.commit : resolutions.rollback;
  },
};
const producer = topic => made(
  producers, topic, () => new Producer({ ...options, topics: [topic], checker }));

const verbs = {
  async configure(given) {
    options = {
      endpoints: given.address, namespace: '', sslEnabled: given.tls === '1', logger: silent,
      requestTimeout: 5000,
    };
    if (given.key) {
      options.sessionCredentials = { accessKey: given.key, accessSecret: given.secret };
    }
    say('ok');
  },
  async send(given) {
    const message = { topic: given.topic, body: Buffer.from(given.body) };
    if (given.delay_ms) message.deliveryTimestamp = new Date(Date.now() + Number(given.delay_ms));
    if (given.tag) message.tag = given.tag;
    if (given.keys) message.keys = given.keys.split(',');
    if (given.group) message.messageGroup = given.group;
    if (given.priority) message.priority = Number(given.priority);
    if (given.properties) {
      message.properties = new Map(given.properties.split(',').map(pair => pair.split(':')));
    }
    const receipt = await (await producer(given.topic)).send(message);
    say('ok', { id: receipt.messageId, handle: receipt.recallHandle ?? '' });
  },
  async check(given) {
    await producer(given.topic);
    say('ok');
  },
  async transact(given) {
    const one = await producer(given.topic);
    const transaction = one.beginTransaction();
    await one.send({ topic: given.topic, body: Buffer.from(given.body) }, transaction);
    if (given.end !== 'none') await transaction[given.end]();
    say('ok');
  },
  async recall(given) {
    await (await producer(given.topic)).recallMessage(given.topic, given.handle);
    say('ok');
  },
  async receive(given) {
    const name = [given.topic, given.group, given.wait_ms].join(' ');
    const consumer = await made(consumers, name, () => new SimpleConsumer({
      ...options, consumerGroup: given.group, awaitDuration: Number(given.wait_ms),
      subscriptions: new Map([[given.topic, given.tag ?? '*']]),
    }));
    const found = await consumer.receive(Number(given.count), Number(given.lease_ms));
    for (const one of found) {
      views.push([consumer, one]);
      show('message', views.length - 1, one);
    }
    say('ok', { count: found.length });
  },
  async ack(given) {
    const [consumer, view] = views[Number(given.n)];
    await consumer.ack(view);
    say('ok');
  },
  async change(given) {
    const [consumer, view] = views[Number(given.n)];
    await consumer.changeInvisibleDuration(view, Number(given.lease_ms));
    say('ok');
  },
  async push(given) {
    const failures = Number(given.failures ?? 0);
    const one = new PushConsumer({
      ...options, consumerGroup: given.group,
      subscriptions: new Map([[given.topic, given.tag ?? '*']]),
      messageListener: {
        async consume(view) {
          show('pushed', -1, view);
          await new Promise(done => setTimeout(done, Number(given.handling_ms ?? 0)));
          return view.deliveryAttempt <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        },
      },
    });
    await one.startup();
    pushes.push(one);
    say('ok');
  },
  async close() {
    for (const one of [...pushes, ...consumers.values(), ...producers.values()]) {
      await one.shutdown();
    }
    say('ok');
  },
};

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [verb, ...words] = line.split('\t');
    const given = Object.fromEntries(words.map(word => {
      const at = word.indexOf('=');
      return [word.slice(0, at), word.slice(at + 1)];
    }));
    try {
      await verbs[verb](given);
    } catch (error) {
      const found = /code[:=] ?(\d+)/.exec(error.message);
      say('error', { code: Number(error.code) || Number(found?.[1]) || 0, text: error.message });
    }
  }
  process.exit(0);
})();
