"""A cluster of Kafka in memory, librdkafka's own, or another one, and what librdkafka's consumer reads there.

    kafka.py FOLDER BROKERS TOPIC      prints the brokers; keeps messages in FOLDER/messages, one a line of JSON

BROKERS is the number of brokers in memory, or the address of one elsewhere.
The consumer checks the CRC of every batch."""
import json
import os
import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

folder, brokers, topic = sys.argv[1:]
cluster = Producer({"bootstrap.servers": brokers} if ":" in brokers else {"test.mock.num.brokers": int(brokers)})
known = cluster.list_topics(topic, timeout=20)
addresses = [f"{broker.host}:{broker.port}" for broker in known.brokers.values()]
consumer = Consumer({
    "bootstrap.servers": ",".join(addresses),
    "group.id": "test",
    "check.crcs": True,
    "fetch.wait.max.ms": 50,
    "allow.auto.create.topics": True,
    "topic.metadata.refresh.interval.ms": 100,
})
partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
print(" ".join(addresses), flush=True)
with open(os.path.join(folder, "messages"), "w", encoding="utf-8") as file:
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            print(message.error(), file=sys.stderr, flush=True)
            continue
        key = message.key()
        line = {"partition": message.partition(), "key": key and key.decode(), "value": message.value().decode(),
                "time": message.timestamp()[1]}
        file.write(json.dumps(line) + "\n")
        file.flush()
