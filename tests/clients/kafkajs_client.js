// kafkajs as a process: writes the records of standard input, or prints those it reads.
// Lines are JSON: {"key": base64 or null, "value": ..., "headers": [[name, base64]], "timestamp": ms}
const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = require("kafkajs");
const snappy = require("kafkajs-snappy");
const zstd = require("@bokuweb/zstd-wasm");

CompressionCodecs[CompressionTypes.Snappy] = snappy;
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer, 3)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
});
const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  zstd: CompressionTypes.ZSTD,
};

const bytes = (text) => (text === null ? null : Buffer.from(text, "base64"));
const text = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString("base64"));

async function write(kafka, topic, codec) {
  let input = "";
  for await (const chunk of process.stdin) input += chunk;
  const messages = input.split("\n").filter(Boolean).map((line) => {
    const record = JSON.parse(line);
    const headers = {};
    for (const [name, value] of record.headers) headers[name] = bytes(value);
    const { key, value, timestamp } = record;
    return { key: bytes(key), value: bytes(value), headers, timestamp: String(timestamp), partition: 0 };
  });
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic, messages, acks: -1, compression: CODECS[codec] });
  await producer.disconnect();
}

async function read(kafka, topic, count) {
  const consumer = kafka.consumer({ groupId: `kafkajs-${topic}` });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  let seen = 0;
  await new Promise((resolve) => consumer.run({
    eachMessage: async ({ message }) => {
      const headers = Object.entries(message.headers).map(([name, value]) => [name, text(value)]);
      console.log(JSON.stringify({
        key: text(message.key), value: text(message.value), headers, timestamp: Number(message.timestamp),
      }));
      seen += 1;
      if (seen >= count) resolve();
    },
  }));
  await consumer.disconnect();
}

async function main([action, bootstrap, topic, last]) {
  await zstd.init();
  const kafka = new Kafka({ clientId: "kafkajs", brokers: [bootstrap], logLevel: logLevel.ERROR });
  await (action === "write" ? write(kafka, topic, last) : read(kafka, topic, Number(last)));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
