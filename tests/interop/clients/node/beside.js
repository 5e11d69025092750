'use strict';
// What Beside.java is, with the npm client `rocketmq`, but that nothing fails: the client sends nothing back, it handles a message that
// failed again itself, and its other queues wait 5 s for that.
//
//   node beside.js NAMESRV TOPIC GROUP          (NODE_PATH names the folder that holds the package)

const { Consumer } = require('rocketmq');

const [namesrvAddr, topic, consumerGroup] = process.argv.slice(2);
const CALL_MS = 60_000;
const quiet = { debug() {}, info() {}, warn() {}, error: (...words) => console.error(...words) };
const httpclient = { request() { throw new Error('no look-up of name servers wanted'); } };

// As in main.js: every call inside the client has three or five seconds, whatever the settings say.
const RemotingClient = require('rocketmq/lib/remoting_client');
const { invoke } = RemotingClient.prototype;
RemotingClient.prototype.invoke = function (address, command, timeout) {
  return invoke.call(this, address, command, Math.max(timeout || 0, CALL_MS));
};

async function main() {
  const consumer = new Consumer({
    namesrvAddr,
    consumerGroup,
    clientIP: '127.0.0.1',
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    rebalanceInterval: 1000,
    logger: quiet,
    httpclient,
  });
  consumer.on('error', error => console.error(error.message));
  consumer.subscribe(topic, '*', function* (message) {
    console.log(message.properties.n, message.reconsumeTimes, message.queueId, message.topic, 'ok');
  });
  await consumer.ready();
  console.log('ready');
  for await (const _ of process.stdin);
  await consumer.close();
  process.exit(0);
}

main();
