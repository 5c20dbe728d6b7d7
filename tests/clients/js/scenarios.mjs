// The JavaScript SDK v3 against the server named on the command line. Prints one JSON line per case: {"name", "error"}.
// The SDK checks the MD5 of every body it sends and receives by itself, and throws when one differs.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import * as sdk from "@aws-sdk/client-sqs";

const [endpoint] = process.argv.slice(2);
const sqs = new sdk.SQSClient({
  endpoint,
  region: "us-east-1",
  credentials: { accessKeyId: "key", secretAccessKey: "secret" },
  md5: class {
    constructor() { this.hash = createHash("md5"); }
    update(data) { this.hash.update(data); }
    async digest() { return new Uint8Array(this.hash.digest()); }
  },
});
let made = 0;

const ask = (name, input) => sqs.send(new sdk[`${name}Command`](input));
const create = async (name, Attributes) =>
  (await ask("CreateQueue", { QueueName: `js-${process.pid}-${(made += 1)}-${name}`, Attributes })).QueueUrl;
const arn = async (QueueUrl) =>
  (await ask("GetQueueAttributes", { QueueUrl, AttributeNames: ["QueueArn"] })).Attributes.QueueArn;

const cases = {
  async "round trip with attributes of all types"() {
    const QueueUrl = await create("plain");
    const MessageAttributes = {
      name: { DataType: "String", StringValue: "ädä" },
      weight: { DataType: "Number", StringValue: "12.5" },
      label: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255, 137]) },
    };
    const sent = await ask("SendMessage", { QueueUrl, MessageBody: "grüße \u{1f600}", MessageAttributes });
    const { Messages: [message] } = await ask("ReceiveMessage", { QueueUrl, MessageAttributeNames: ["All"] });
    assert.equal(message.MessageId, sent.MessageId);
    assert.equal(message.Body, "grüße \u{1f600}");
    assert.deepEqual([...message.MessageAttributes.label.BinaryValue], [0, 255, 137]);
    assert.equal(message.MD5OfMessageAttributes, sent.MD5OfMessageAttributes);
    await ask("DeleteMessage", { QueueUrl, ReceiptHandle: message.ReceiptHandle });
    assert.equal((await ask("ReceiveMessage", { QueueUrl })).Messages, undefined);
  },
  async "fifo order and deduplication"() {
    const QueueUrl = await create("orders.fifo", { FifoQueue: "true", ContentBasedDeduplication: "true" });
    for (const MessageBody of ["1", "2", "2", "3"]) await ask("SendMessage", { QueueUrl, MessageBody, MessageGroupId: "g" });
    const { Messages } = await ask("ReceiveMessage", { QueueUrl, MaxNumberOfMessages: 10, MessageSystemAttributeNames: ["All"] });
    assert.deepEqual(Messages.map((message) => message.Body), ["1", "2", "3"]);
    const numbers = Messages.map((message) => BigInt(message.Attributes.SequenceNumber));
    assert.ok(numbers[0] < numbers[1] && numbers[1] < numbers[2]);
  },
  async "batches report entry by entry"() {
    const QueueUrl = await create("batch", { MaximumMessageSize: "1024" });
    const Entries = [{ Id: "small", MessageBody: "x" }, { Id: "large", MessageBody: "x".repeat(1025) }];
    const sent = await ask("SendMessageBatch", { QueueUrl, Entries });
    assert.deepEqual([sent.Successful.map((one) => one.Id), sent.Failed.map((one) => one.Id)], [["small"], ["large"]]);
    const { Messages: [{ ReceiptHandle }] } = await ask("ReceiveMessage", { QueueUrl });
    const deleted = await ask("DeleteMessageBatch", {
      QueueUrl, Entries: [{ Id: "good", ReceiptHandle }, { Id: "bad", ReceiptHandle: "garbage" }],
    });
    assert.equal(deleted.Failed[0].Code, "ReceiptHandleIsInvalid");
  },
  async "ten long polls answered by ten sends"() {
    const QueueUrl = await create("poll");
    const polls = Array.from({ length: 10 }, () => ask("ReceiveMessage", { QueueUrl, WaitTimeSeconds: 20 }));
    await ask("SendMessageBatch", { QueueUrl, Entries: polls.map((_, n) => ({ Id: `${n}`, MessageBody: `${n}` })) });
    const bodies = (await Promise.all(polls)).map(({ Messages: [message] }) => message.Body);
    assert.deepEqual(bodies.sort(), ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
  },
  async "visibility, dead letters and the way back"() {
    const dead = await create("dead");
    const RedrivePolicy = JSON.stringify({ deadLetterTargetArn: await arn(dead), maxReceiveCount: 1 });
    const QueueUrl = await create("work", { RedrivePolicy });
    await ask("SendMessage", { QueueUrl, MessageBody: "poison" });
    const { Messages: [{ ReceiptHandle }] } = await ask("ReceiveMessage", { QueueUrl });
    await ask("ChangeMessageVisibility", { QueueUrl, ReceiptHandle, VisibilityTimeout: 0 });
    assert.equal((await ask("ReceiveMessage", { QueueUrl })).Messages, undefined);
    await ask("StartMessageMoveTask", { SourceArn: await arn(dead) });
    const { Messages: [back] } = await ask("ReceiveMessage", { QueueUrl, WaitTimeSeconds: 10 });
    assert.equal(back.Body, "poison");
  },
  async "errors by class"() {
    await assert.rejects(ask("GetQueueUrl", { QueueName: "nobody-made-it" }), (error) => {
      assert.ok(error instanceof sdk.QueueDoesNotExist, error.constructor.name);
      assert.equal(error.$metadata.httpStatusCode, 400);
      return true;
    });
    const QueueUrl = await create("errors");
    await assert.rejects(ask("SendMessageBatch", { QueueUrl, Entries: [] }), sdk.EmptyBatchRequest);
    await assert.rejects(ask("DeleteMessage", { QueueUrl, ReceiptHandle: "garbage" }), sdk.ReceiptHandleIsInvalid);
  },
  async "pages and tags"() {
    const prefix = `js-${process.pid}-page`;
    for (const n of [1, 2, 3]) await ask("CreateQueue", { QueueName: `${prefix}-${n}`, tags: { n: `${n}` } });
    const urls = [];
    for await (const page of sdk.paginateListQueues({ client: sqs, pageSize: 2 }, { QueueNamePrefix: prefix })) {
      urls.push(...(page.QueueUrls ?? []));
    }
    assert.equal(urls.length, 3);
    assert.deepEqual((await ask("ListQueueTags", { QueueUrl: urls[0] })).Tags, { n: urls[0].slice(-1) });
  },
};

for (const [name, run] of Object.entries(cases)) {
  let error = null;
  try {
    await run();
  } catch (thrown) {
    error = thrown.stack;
  }
  console.log(JSON.stringify({ name, error }));
}
sqs.destroy();
