'use strict';
// Runs every scenario of the npm client `rocketmq` at once against the name server given, each on topics and groups that
// start with the prefix given, and prints one JSON line per scenario as it ends. Exits 0 only when all passed. With
// INTEROP_SCENARIOS=a,b in the environment: those alone.
//
//   node main.js NAMESRV PREFIX COUNT          (NODE_PATH names the folder that holds the package)

const co = require('co');
const crypto = require('crypto');
const { Consumer, Producer, Message } = require('rocketmq');

const [namesrvAddr, prefix, countText] = process.argv.slice(2);
const count = Number(countText);
const PATIENCE_MS = 180_000; // only a failure waits that long, or a machine busy with much else
const CALL_MS = 60_000;
const TAGS = ['red', 'green', 'blue'];
const TEXT = 'plain é 漢字 🚀 "quoted" \\ \n\t';
const quiet = { debug() {}, info() {}, warn() {}, error: (...words) => console.error(...words) };

// The client insists on one, for a look-up at Aliyun that it does not make when namesrvAddr is given.
const httpclient = { request() { throw new Error('no look-up of name servers wanted'); } };

// Every call inside the client has three or five seconds, whatever the settings say; on a busy machine one of them is late.
const RemotingClient = require('rocketmq/lib/remoting_client');
const { invoke } = RemotingClient.prototype;
RemotingClient.prototype.invoke = function (address, command, timeout) {
  return invoke.call(this, address, command, Math.max(timeout || 0, CALL_MS));
};

function that(truth, what) {
  if (!truth) throw new Error(what);
}

function equal(wanted, got, what) {
  that(wanted === got, `${what}: wanted ${JSON.stringify(wanted)}, got ${JSON.stringify(got)}`);
}

async function eventually(what, question) {
  for (const deadline = Date.now() + PATIENCE_MS; Date.now() < deadline;) {
    if (await question()) return;
    await new Promise(resolve => setTimeout(resolve, 20));
  }
  throw new Error(`never came true: ${what}`);
}

// Signs for the user of an environment variable, as ACCESS:SECRET, if there is one.
function signing(user) {
  const [accessKey, secretKey] = (process.env[user] || ':').split(':');
  return accessKey ? { accessKey, secretKey } : {};
}

// What one scenario sends, and the comparison of what came back with it.
class Letters {
  constructor(topic, size) {
    this.topic = topic;
    this.sent = [];
    this.results = new Map();
    for (let n = 0; n < size; n++) this.add(Buffer.from(`letter ${n} ${TEXT}`));
  }

  add(body) {
    const n = this.sent.length;
    const properties = { n: String(n), text: TEXT.trim() + n, größe: 'ü' + n };
    this.sent.push({ n, body, tags: TAGS[n % 3], keys: `key-${n} shared`, properties });
  }

  tagged(...tags) {
    return this.sent.filter(letter => tags.includes(letter.tags));
  }

  message(letter) {
    const message = new Message(this.topic, letter.tags, letter.body);
    message.keys = letter.keys.split(' ');
    Object.assign(message.properties, letter.properties);
    return message;
  }

  async send(producer, from, to) {
    for (const letter of this.sent.slice(from, to)) {
      const result = await co(producer.send(this.message(letter)));
      equal('SEND_OK', result.sendStatus, 'send status');
      this.results.set(letter.n, result);
    }
  }

  check(expected, received) {
    const byNumber = new Map();
    for (const message of received) {
      const n = Number(message.properties.n);
      that(!byNumber.has(n), `${this.topic}: message ${n} twice`);
      byNumber.set(n, message);
    }
    equal(expected.length, byNumber.size, `${this.topic}: messages`);
    for (const letter of expected) {
      const got = byNumber.get(letter.n);
      const which = `${this.topic} message ${letter.n}: `;
      that(got, which + 'missing');
      equal(this.topic, got.topic, which + 'topic');
      that(letter.body.equals(got.body), which + `body of ${got.body.length} bytes, wanted ${letter.body.length}`);
      equal(letter.tags, got.tags, which + 'tags');
      equal(letter.keys, got.keys.trim(), which + 'keys');
      for (const [name, value] of Object.entries(letter.properties)) equal(value, got.properties[name], which + name);
      const result = this.results.get(letter.n);
      equal(Number(result.messageQueue.queueId), got.queueId, which + 'queue');
      equal(Number(result.queueOffset), Number(got.queueOffset), which + 'offset');
    }
  }
}

async function producerFor(topic, more = {}) {
  const producer = new Producer({
    namesrvAddr,
    producerGroup: `${topic}-producer`,
    instanceName: `${topic}-producer`,
    clientIP: '127.0.0.1',
    sendMsgTimeout: CALL_MS, // after the usual 3 s on a busy machine it would send again: duplicates
    logger: quiet,
    httpclient,
    ...signing('INTEROP_PRODUCER'),
    ...more,
  });
  producer.on('error', error => console.error(topic, error.message));
  await producer.ready();
  if (!process.env.INTEROP_PRODUCER) await co(createTopic(producer._mqClient, topic)); // who may only publish finds it there
  return producer;
}

// The client cannot send to a topic that does not exist (it throws at the name server's 17 instead of asking for TBW102's
// route), so each scenario creates its own, with the request that the client has for it.
function* createTopic(client, topic) {
  const route = yield client.getTopicRouteInfoFromNameServer('TBW102', CALL_MS);
  const config = { topicName: topic, readQueueNums: 4, writeQueueNums: 4, perm: 6, topicSysFlag: 0, order: false };
  for (const broker of route.brokerDatas) {
    yield client.createTopic(broker.brokerAddrs[0], 'TBW102', { ...config, topicFilterType: 'SINGLE_TAG' }, CALL_MS);
  }
  for (const deadline = Date.now() + PATIENCE_MS; Date.now() < deadline;) {
    try {
      return yield client.getTopicRouteInfoFromNameServer(topic, CALL_MS);
    } catch (error) {
      equal(17, error.code, 'name server about a topic that is not there yet');
      yield new Promise(resolve => setTimeout(resolve, 20));
    }
  }
  throw new Error(`${topic} never came into the routes`);
}

async function consumerFor(group, instance, topic, expression, received, user = 'INTEROP_CONSUMER') {
  const consumer = new Consumer({
    namesrvAddr,
    consumerGroup: group,
    instanceName: `${group}-${instance}`,
    clientIP: '127.0.0.1',
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    rebalanceInterval: 1000,
    logger: quiet,
    httpclient,
    ...signing(user),
  });
  consumer.on('error', error => console.error(topic, error.message));
  consumer.subscribe(topic, expression, function* (message) {
    received.push(message);
  });
  await consumer.ready();
  return consumer;
}

// Waits until the group's offsets at the broker are past `messages` messages, so that who takes over a queue gets none of them
// again: consumers commit one-way. Asked by the producer's connection, for a consumer's offset store would take the answer over
// the newer offset that it has in memory.
async function settled(producer, topic, messages, ...consumers) {
  await eventually(`offsets of ${messages} messages`, async () => {
    for (const consumer of consumers) await co(consumer.persistConsumerOffset());
    return await co(committed(producer._mqClient, topic)) === messages;
  });
}

function* committed(client, topic) {
  const route = yield client.getTopicRouteInfoFromNameServer(topic, CALL_MS);
  let sum = 0;
  for (let queueId = 0; queueId < 4; queueId++) {
    try {
      const header = { topic, consumerGroup: `${topic}-group`, queueId };
      const offset = yield client.queryConsumerOffset(route.brokerDatas[0].brokerAddrs[0], header, CALL_MS);
      sum += Math.max(0, Number(offset));
    } catch (error) {
      equal(22, error.code, 'broker about a queue without an offset');
    }
  }
  return sum;
}

// What was received without repeats of the same stored message: delivery is at least once when a queue changes hands. The same
// letter stored twice stays twice.
function once(received) {
  return [...new Map(received.map(message => [`${message.queueId}:${message.queueOffset}`, message])).values()];
}

async function readBack(letters) {
  const received = [];
  const consumer = await consumerFor(`${letters.topic}-reader`, 'a', letters.topic, '*', received);
  await eventually(`${letters.topic}: ${letters.sent.length} messages`, () => received.length >= letters.sent.length);
  await consumer.close();
  letters.check(letters.sent, received);
  return `${received.length} messages`;
}

const scenarios = {
  async send_sync(topic) {
    const producer = await producerFor(topic);
    const letters = new Letters(topic, count);
    await letters.send(producer, 0, count);
    return readBack(letters);
  },

  // AccessKey, Signature and OnsChannel beside the fields of the request: ignored by a broker without access control
  async send_signed(topic) {
    const producer = await producerFor(topic, { accessKey: 'nobody', secretKey: 'nothing' });
    const letters = new Letters(topic, 8);
    await letters.send(producer, 0, 8);
    return readBack(letters);
  },

  async send_large(topic) {
    const producer = await producerFor(topic);
    const letters = new Letters(topic, 0);
    letters.add(Buffer.from('compressible '.repeat(500)));
    letters.add(Buffer.from('compressible '.repeat(80_000)));
    letters.add(crypto.randomBytes(5_000));
    letters.add(crypto.randomBytes(1 << 20));
    letters.add(Buffer.from([0]));
    await letters.send(producer, 0, letters.sent.length);
    return readBack(letters);
  },

  async push_from_first(topic) {
    const producer = await producerFor(topic);
    const letters = new Letters(topic, count);
    await letters.send(producer, 0, count / 2);
    const received = [];
    const consumer = await consumerFor(`${topic}-group`, 'a', topic, '*', received);
    await eventually('first half', () => received.length >= count / 2);
    await letters.send(producer, count / 2, count);
    await eventually('second half', () => received.length >= count);
    await consumer.close();
    letters.check(letters.sent, received);
    return `${received.length} messages`;
  },

  async push_tag_filter(topic) {
    const producer = await producerFor(topic);
    const letters = new Letters(topic, count);
    await letters.send(producer, 0, count);
    const received = [];
    const consumer = await consumerFor(`${topic}-group`, 'a', topic, 'red || blue', received);
    const wanted = letters.tagged('red', 'blue');
    await eventually('red and blue', () => received.length >= wanted.length);
    await consumer.close();
    letters.check(wanted, received);
    return `${received.length} of ${count} messages`;
  },

  async push_two_balance(topic) {
    const producer = await producerFor(topic);
    const letters = new Letters(topic, count);
    await letters.send(producer, 0, 1);
    const received = [[], []];
    const consumers = [];
    for (const i of [0, 1]) {
      consumers.push(await consumerFor(`${topic}-group`, String(i), topic, '*', received[i]));
      if (i === 0) {
        await eventually('the first message', () => received[0].length > 0);
        await settled(producer, topic, 1, consumers[0]);
      }
    }
    const owned = i => [...consumers[i].processQueueTable.keys()].filter(key => key.includes(topic));
    await eventually('two queues each, disjoint', () => owned(0).length === 2 && owned(1).length === 2
      && new Set([...owned(0), ...owned(1)]).size === 4);
    await letters.send(producer, 1, count);
    await eventually('all', () => once(received.flat()).length >= count);
    for (const consumer of consumers) await consumer.close();
    letters.check(letters.sent, once(received.flat()));
    that(received[1].length > 0, 'both had a share');
    return `${received[0].length} and ${received[1].length} messages`;
  },

  async push_resume(topic) {
    const producer = await producerFor(topic);
    const letters = new Letters(topic, count);
    const halves = [letters.sent.slice(0, count / 2), letters.sent.slice(count / 2)];
    for (const [part, wanted] of halves.entries()) {
      await letters.send(producer, wanted[0].n, wanted[0].n + wanted.length);
      const received = [];
      const consumer = await consumerFor(`${topic}-group`, String(part), topic, '*', received);
      await eventually(`part ${part}`, () => received.length >= wanted.length);
      await settled(producer, topic, wanted[0].n + wanted.length, consumer);
      await consumer.close();
      letters.check(wanted, received);
    }
    return 'half and half';
  },
};

async function run(name, scenario) {
  const start = Date.now();
  const report = { scenario: name, ok: true };
  try {
    report.detail = await scenario(`${prefix}-${name}`);
  } catch (error) {
    console.error(name, error);
    report.ok = false;
    report.detail = error.message;
  }
  report.seconds = (Date.now() - start) / 1000;
  console.log(JSON.stringify(report));
  return report.ok;
}

// Those who may not are told so, and get no message; those who may, beside them, do. STALE has the right secret for the name
// server, another one for the broker.
async function refused(topic) {
  const letters = new Letters(topic, count);
  const producer = await producerFor(topic);
  await letters.send(producer, 0, 1);
  const stolen = [];
  const received = [];
  const thief = await consumerFor(`${topic}-stale`, 'a', topic, '*', stolen, 'INTEROP_STALE').catch(error => error);
  equal(16, thief.code, 'who consumes with a wrong key is told');
  const consumer = await consumerFor(`${topic}-group`, 'a', topic, '*', received);
  for (const user of ['INTEROP_STALE', 'INTEROP_CONSUMER', 'INTEROP_NOBODY']) {
    let said = 'it was done';
    try {
      const other = await producerFor(topic, { instanceName: `${topic}-${user}`, ...signing(user) });
      await co(other.send(letters.message(letters.sent[0])));
    } catch (error) {
      said = `${error.code} ${error.message}`;
    }
    that(/^16 |times, still failed/.test(said), `${user} is told ${said}`);
  }
  await letters.send(producer, 1, count);
  await eventually('all', () => received.length >= count);
  await consumer.close();
  equal(0, stolen.length, 'messages of who has a wrong key');
  letters.check(letters.sent, received);
  return 'three were refused';
}

const wanted = (process.env.INTEROP_SCENARIOS || '').split(',');
if (wanted.includes('refused')) scenarios.refused = refused;
const chosen = Object.entries(scenarios).filter(([name]) => wanted[0] === '' || wanted.includes(name));
Promise.all(chosen.map(([name, scenario]) => run(name, scenario)))
  .then(passed => process.exit(passed.every(Boolean) ? 0 : 1));
