"""A consumer of what Pigeonhole stores in Pulsar, to copy. It makes each message what it was at its source, with all its headers, and prints it
as a line of JSON, where what is no text is {"base64": "..."}:

    {"key": "k1", "value": "text", "headers": [["a", "1"], ["a", "2"]], "time": 1700000000123, "origin": {"system": "kafka", ...}}

Once:

    python3 -m venv venv && venv/bin/pip install -r requirements.txt

Then, with the topic that is the route's `to`:

    venv/bin/python pigeonhole.py --url pulsar://127.0.0.1:6650 --topic persistent://public/default/orders
"""

import argparse
import base64
import json
import re
import signal
import sys
import urllib.parse

import pulsar


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--url", default="pulsar://127.0.0.1:6650")
    args.add_argument("--topic", default="persistent://public/default/orders")
    args.add_argument("--subscription", default="example", help="its place on the topic outlives the program")
    args = args.parse_args()

    stopped = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.append(True))

    # With authentication: authentication=pulsar.AuthenticationToken(token). Without a logger the client writes to standard output.
    client = pulsar.Client(args.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/stderr"))
    try:
        consumer = client.subscribe(
            args.topic,
            args.subscription,
            # What was in order at the source is in order on one partition here, and Failover gives each partition to one consumer
            # at a time: the order is kept, and more processes share the partitions. Shared and KeyShared do not keep it: the
            # broker hands out whole batches.
            consumer_type=pulsar.ConsumerType.Failover,
            # A new subscription begins with the oldest message that there is.
            initial_position=pulsar.InitialPosition.Earliest,
        )
        while not stopped:
            try:
                message = consumer.receive(timeout_millis=200)
            except pulsar.Timeout:
                continue
            # First the work, then the acknowledgement: what is under way when the process ends comes again. Who must not do a
            # thing twice knows it by origin: its place at the source is the same each time, whatever has happened between.
            sys.stdout.write(json.dumps(restore(message), default=as_base64, ensure_ascii=False) + "\n")
            sys.stdout.flush()
            consumer.acknowledge(message)
        consumer.close()  # sends the acknowledgements that it still holds
    finally:
        client.close()


def restore(message):
    """Returns the message as it was at its source. Texts are str, what is no text is bytes, null is None."""
    properties = dict(message.properties())
    value = None if message.has_null_value() else message.data()
    if properties.pop("aviary_empty", "") == "true":
        value = b""  # clients may show an empty value that is compressed as a few bytes

    key = message.partition_key() or None
    encoding = properties.pop("pigeonhole.key_encoding", "")
    if encoding == "base64":  # Pulsar's keys are text
        key = base64.b64decode(key)
    elif encoding == "empty":
        key = ""

    time = message.event_timestamp() or None  # milliseconds since 1970; None: its producer said none
    exact = properties.pop("pigeonhole.time", "")  # what Pulsar's field cannot hold; with an s behind it: seconds
    if exact:
        time = None if exact == "none" else int(exact) if re.fullmatch(r"-?\d+", exact) else exact

    origin = None
    if properties.pop("pigeonhole.hops", ""):  # the places that routes took it from. Without it the two others are the application's own
        origin = read_origin(properties.pop("pigeonhole.origin", ""))  # absent with `provenance: hops`
        properties.pop("pigeonhole.from", "")  # the place before this one, after more than one hop

    amqp = properties.pop("pigeonhole.amqp", "")  # what RabbitMQ knows besides: exchange, routing_key, content_type and others
    entry = properties.pop("pigeonhole.headers", "")
    original = {"key": text(key), "value": text(value), "headers": read_headers(properties, entry), "time": time, "origin": origin}
    if amqp:
        original["amqp"] = {name: unescape(value) for name, _, value in (part.partition("=") for part in amqp.split("&"))}
    return original


def read_origin(entry):
    """Reads system;cluster;topic;partition;offset;id: where the message was first taken from."""
    parts = entry.split(";")
    if len(parts) < 5:
        return None
    system, cluster, topic = (unescape(part) for part in parts[:3])
    partition, offset = (int(part) if part else None for part in parts[3:5])
    # The id is that of Kafka's topic, or of Pulsar's or RabbitMQ's message.
    identifier = unescape(parts[5]) if len(parts) > 5 else ""
    return {"system": system, "cluster": cluster, "topic": topic, "partition": partition, "offset": offset, "id": identifier}


def read_headers(properties, entry):
    """Returns the headers in their order. Those that are text are properties, sorted by name; where that is not all, the entry says what is,
    separated by commas: 3 is the fourth property, 0-2 are the first three, 4:I the fifth, which was a number of RabbitMQ, and name=value is a
    header that Pulsar has no property for. Without an entry the properties are all."""
    held = sorted(properties.items())
    headers, used = [], set()
    # Not at commas within the brackets of RabbitMQ's arrays and tables.
    depth, items = 0, [""]
    for c in entry:
        depth += (c in "({") - (c in ")}")
        if c == "," and depth == 0:
            items.append("")
        else:
            items[-1] += c
    for item in items:
        name, is_value, value = item.partition("=")
        if is_value:
            headers.append((unescape(name), read_value(value)))
            continue
        run = re.match(r"(\d+)(?:-(\d+))?", item)
        if run:
            for i in range(int(run[1]), min(int(run[2] or run[1]) + 1, len(held))):
                headers.append(held[i])
                used.add(i)
    return headers + [header for i, header in enumerate(held) if i not in used]


def read_value(value):
    """Reads a letter and the value: S is text, y and x are bytes, V is null. The other letters are RabbitMQ's types: numbers, booleans and
    times as people write them, arrays A(value,value) and tables F{name=value,name=value}."""
    kind, plain = value[:1], value[1:]
    if kind == "V":
        return None
    if kind == "S":
        return unescape(plain)
    if kind in ("x", "y"):
        return text(base64.urlsafe_b64decode(plain + "=" * (-len(plain) % 4)))
    return value if kind in ("A", "F") else plain


def unescape(escaped):
    """Reads %XX as a byte."""
    return text(urllib.parse.unquote_to_bytes(escaped))


def text(data):
    """Makes bytes that are text a str."""
    try:
        return data.decode() if isinstance(data, bytes) else data
    except UnicodeDecodeError:
        return data


def as_base64(data):
    return {"base64": base64.b64encode(data).decode()}


if __name__ == "__main__":
    main()
