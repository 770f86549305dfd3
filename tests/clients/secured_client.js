// kafkajs on a secured listener. Arguments: a file of settings in JSON, and a topic.
// Commands of standard input, each with one line of output: "send VALUE" and "read COUNT".
const fs = require("fs");
const readline = require("readline");
const { Kafka, logLevel } = require("kafkajs");

const [file, topic] = process.argv.slice(2);
const login = JSON.parse(fs.readFileSync(file, "utf8"));

function sasl() {
  if (login.mechanism === "OAUTHBEARER") {
    const oauthBearerProvider = async () => ({ value: fs.readFileSync(login.token_file, "utf8") });
    return { mechanism: "oauthbearer", oauthBearerProvider };
  }
  return { mechanism: login.mechanism.toLowerCase(), username: login.user, password: login.password };
}

function tls() {
  const own = login.certificate ? fs.readFileSync(login.certificate, "utf8") : undefined;
  return { ca: [fs.readFileSync(login.authority, "utf8")], cert: own, key: own };
}

const kafka = new Kafka({
  clientId: "kafkajs",
  brokers: [login.bootstrap],
  logLevel: logLevel.NOTHING,
  connectionTimeout: login.limit_s * 1000,
  authenticationTimeout: login.limit_s * 1000,
  reauthenticationThreshold: 1000, // by default 10 s: a shorter session would begin anew with each request
  retry: { retries: 2 },
  ...(login.protocol.startsWith("SASL_") ? { sasl: sasl() } : {}),
  ...(login.protocol.endsWith("SSL") ? { ssl: tls() } : {}),
});

let producer;

async function send(value) {
  if (producer === undefined) {
    producer = kafka.producer();
    await producer.connect();
  }
  await producer.send({ topic, messages: [{ value, partition: 0 }], acks: -1 });
  return "ok";
}

async function read(count) {
  const consumer = kafka.consumer({ groupId: `kafkajs-${topic}` });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const values = [];
  await new Promise((resolve) => consumer.run({
    eachMessage: async ({ message }) => {
      values.push(message.value.toString());
      if (values.length >= count) resolve();
    },
  }));
  await consumer.disconnect();
  return `ok ${values.join(",")}`;
}

function refused(error) {
  const parts = [];
  for (let one = error; one !== undefined && one !== null; one = one.cause) parts.push(`${one.name}: ${one.message}`);
  return `refused ${parts.join(" ").replace(/\n/g, " ")}`;
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const value = line.slice(5);
    const done = line.startsWith("send ") ? send(value) : read(Number(value));
    console.log(await done.catch(refused));
  }
  if (producer !== undefined) await producer.disconnect();
}

main().then(() => process.exit(0));
