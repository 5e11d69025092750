'use strict';
// What Ordering.java is in its mode `broadcast`, with the npm client `rocketmq`, which has no other of its modes.
//
//   node broadcast.js NAMESRV TOPIC GROUP broadcast          (NODE_PATH names the folder that holds the package)

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
    isBroadcast: true,
    rebalanceInterval: 1000,
    logger: quiet,
    httpclient,
  });
  consumer.on('error', error => console.error(error.message));
  consumer.subscribe(topic, '*', function* (message) {
    console.log('E', message.queueId, message.queueOffset, Date.now());
  });
  await consumer.ready();
  console.log('ready');
  for await (const _ of process.stdin);
  await consumer.close();
  process.exit(0);
}

main();
