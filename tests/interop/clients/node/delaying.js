'use strict';
// Delayed sends of the npm client `rocketmq`, for somebody else to read: by level, and by time, for which the client has no call but the
// property that Java's sets. Its "places" is empty: the client gives its messages no id, and is told of none but that of the entry that
// waits.
//
//   node delaying.js NAMESRV PREFIX COUNT          (NODE_PATH names the folder that holds the package)

const co = require('co');
const fs = require('fs');
const { Producer, Message } = require('rocketmq');

const [namesrvAddr, prefix] = process.argv.slice(2);
const FEW = 24;
const PATIENCE_MS = 180_000; // only a failure waits that long, or a machine busy with much else
const CALL_MS = 60_000;
const TAGS = ['red', 'green', 'blue'];
const TEXT = 'plain é 漢字 🚀 "quoted" \\ \n\t';
const quiet = { debug() {}, info() {}, warn() {}, error: (...words) => console.error(...words) };
const httpclient = { request() { throw new Error('no look-up of name servers wanted'); } };

// As in main.js: every call inside the client has three or five seconds, whatever the settings say.
const RemotingClient = require('rocketmq/lib/remoting_client');
const { invoke } = RemotingClient.prototype;
RemotingClient.prototype.invoke = function (address, command, timeout) {
  return invoke.call(this, address, command, Math.max(timeout || 0, CALL_MS));
};

// As in main.js: the client cannot send to a topic that does not exist.
function* createTopic(client, topic) {
  const route = yield client.getTopicRouteInfoFromNameServer('TBW102', CALL_MS);
  const config = { topicName: topic, readQueueNums: 4, writeQueueNums: 4, perm: 6, topicSysFlag: 0, order: false };
  for (const broker of route.brokerDatas) {
    yield client.createTopic(broker.brokerAddrs[0], 'TBW102', { ...config, topicFilterType: 'SINGLE_TAG' }, CALL_MS);
  }
  for (const deadline = Date.now() + PATIENCE_MS;;) {
    try {
      return yield client.getTopicRouteInfoFromNameServer(topic, CALL_MS);
    } catch (error) {
      if (error.code !== 17 || Date.now() > deadline) throw error;
      yield new Promise(resolve => setTimeout(resolve, 20));
    }
  }
}

const delays = {
  levels(message, n) {
    message.delayTimeLevel = n % 4;
  },
  timers(message, n) {
    const due = String(Date.now() + 3000 + 100 * n);
    Object.assign(message.properties, { due, TIMER_DELIVER_MS: due });
  },
};

co(function* () {
  const settings = { namesrvAddr, producerGroup: `${prefix}-producer`, clientIP: '127.0.0.1', logger: quiet, httpclient };
  const producer = new Producer({ ...settings, sendMsgTimeout: CALL_MS });
  producer.on('error', error => console.error(error.message));
  yield producer.ready();
  let passed = true;
  for (const [name, delay] of Object.entries(delays)) {
    const start = Date.now();
    const topic = `${prefix}-${name}`;
    const report = { scenario: name, ok: true, detail: `${FEW} messages` };
    yield createTopic(producer._mqClient, topic);
    for (let n = 0; n < FEW; n++) {
      const message = new Message(topic, TAGS[n % 3], Buffer.from(`letter ${n} ${TEXT}`));
      message.keys = [`key-${n}`, 'shared'];
      Object.assign(message.properties, { n: String(n), text: TEXT.trim() + n, größe: 'ü' + n });
      delay(message, n);
      const result = yield producer.send(message);
      if (result.sendStatus !== 'SEND_OK') Object.assign(report, { ok: false, detail: `message ${n}: ${result.sendStatus}` });
    }
    report.seconds = (Date.now() - start) / 1000;
    console.log(JSON.stringify(report));
    passed = passed && report.ok;
  }
  fs.writeFileSync('places', '');
  yield producer.close();
  process.exit(passed ? 0 : 1);
}).catch(error => {
  console.error(error);
  process.exit(1);
});
