/**
 * RocketMQ's official Node client at the end of a pipe, as GrpcClient.java is that of Java.
 *
 * Arguments: the addresses of the doors, the topics that the producer names at its start, an AccessKey with its secret,
 * and whether it speaks TLS. Commands and answers are lines of fields between tabs; an answer begins with "done" or
 * "error". NODE_PATH has the client.
 */
'use strict';

const readline = require('node:readline');
const { FilterExpression, Producer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

/** For a machine that is loaded; the client's default is 3 s. */
const TIMEOUT_MS = 20_000;
const DECISIONS = { commit: TransactionResolution.COMMIT, rollback: TransactionResolution.ROLLBACK };

const [addresses, topics, accessKey, accessSecret, tls] = process.argv.slice(2);
const configuration = {
  endpoints: addresses,
  requestTimeout: TIMEOUT_MS,
  sslEnabled: tls === 'true',
  // Its own writes to a file, and what it prints to the console would look like an answer.
  logger: Object.fromEntries(['debug', 'info', 'warn', 'error'].map((level) => [level, console.error])),
  ...(accessKey && { sessionCredentials: { accessKey, accessSecret } }),
};
const answers = new Map();
const asked = new Map();
const checks = [];

async function check(message) {
  const text = message.properties.get('text');
  const number = asked.get(text) ?? 0;
  asked.set(text, number + 1);
  checks.push([
    text,
    message.messageId,
    message.topic,
    message.tag ?? '',
    [...message.keys].sort().join(' '),
    message.properties.get('p') ?? '',
    message.body.length,
    message.corrupted ? 'True' : 'False',
    message.bornHost.replace(/:\d+$/, ''),
  ].join('|'));
  const known = answers.get(text) ?? ['unknown'];
  return DECISIONS[known[Math.min(number, known.length - 1)]] ?? TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED;
}

/** A text "x*1000" is a thousand letters x. */
function messageOf(topic, text, tag = '', keys = '', p = '') {
  const [letters, times] = text.split('*');
  return {
    topic,
    body: Buffer.from(letters.repeat(Number(times ?? 1))),
    properties: new Map([['text', text], ...(p ? [['p', p]] : [])]),
    ...(tag && { tag }),
    ...(keys && { keys: keys.split(' ') }),
  };
}

async function transaction(producer, topic, text, answer, answersToChecks, tag, keys, p) {
  answers.set(text, answersToChecks.split(','));
  const begun = producer.beginTransaction();
  const receipt = await producer.send(messageOf(topic, text, tag, keys, p), begun);
  if (answer === 'commit') {
    await begun.commit();
  } else if (answer === 'rollback') {
    await begun.rollback();
  }
  return receipt.messageId;
}

async function obey(producer, name, given) {
  const [topic, text, more] = given;
  switch (name) {
    case 'transaction':
      return transaction(producer, ...given);
    case 'plain':
      return (await producer.send(messageOf(topic, text))).messageId;
    case 'fifo':
      return (await producer.send({ ...messageOf(topic, text), messageGroup: more })).messageId;
    case 'delayed':
      return (await producer.send({ ...messageOf(topic, text), delay: Number(more) * 1_000 })).messageId;
    case 'several': {
      const sent = given.slice(2).map((one) => transaction(producer, topic, one, text, text, '', '', ''));
      return (await Promise.all(sent)).join('\t');
    }
    case 'checks':
      return checks.join(';');
    case 'consume': {
      const subscriptions = new Map([[topic, FilterExpression.SUB_ALL]]);
      const consumer = new SimpleConsumer({ ...configuration, consumerGroup: 'consumers', subscriptions });
      try {
        await consumer.startup();
        return String(await consumer.receive(1, 10_000));
      } finally {
        await consumer.shutdown();
      }
    }
    default:
      throw new Error(`no such command: ${name}`);
  }
}

async function main() {
  const producer = new Producer({ ...configuration, topics: topics.split(',').filter(Boolean), checker: { check } });
  await producer.startup();
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [name, ...given] = line.split('\t');
    let answer;
    try {
      answer = `done\t${await obey(producer, name, given)}`;
    } catch (error) {
      answer = `error\t${error.name}\t${error.message}\t${error.cause ?? ''}`;
    }
    process.stdout.write(`${answer.replaceAll('\n', ' ')}\n`);
  }
  await producer.shutdown();
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
