"""A consumer of what Nightingale writes, to copy. It prints a line per sample:

    name{label="value",...} value timestamp

Once:

    python3 -m venv venv && venv/bin/pip install -r requirements.txt
    venv/bin/python -m grpc_tools.protoc -I. --python_out=. prometheus.proto

Then, with the topic and the format that Nightingale has in its configuration:

    venv/bin/python nightingale.py --url pulsar://127.0.0.1:6650 --topic persistent://public/default/metrics --format packed
"""

import argparse
import json
import math
import signal
import struct
import sys

import prometheus_pb2 as prometheus
import pulsar

STALE = struct.pack(">Q", 0x7FF0000000000002)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--url", default="pulsar://127.0.0.1:6650")
    args.add_argument("--topic", default="persistent://public/default/metrics")
    args.add_argument("--subscription", default="example", help="its place on the topic outlives the program")
    args.add_argument("--format", default="json", choices=["json", "protobuf", "packed"])
    args = args.parse_args()

    stopped = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.append(True))

    # With authentication: authentication=pulsar.AuthenticationToken(token). Without a logger the client writes to standard output.
    client = pulsar.Client(args.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/stderr"))
    try:
        consumer = client.subscribe(
            # A topic of a template, such as metrics-{label.job}, is many: re.compile(...) here reads them all.
            args.topic,
            args.subscription,
            # One series is always on one partition, and Failover gives each partition to one consumer at a time: the order
            # of each series is kept, and more processes share the partitions. Shared and KeyShared do not keep it.
            consumer_type=pulsar.ConsumerType.Failover,
            # A new subscription begins with the oldest message that there is.
            initial_position=pulsar.InitialPosition.Earliest,
            # Messages that wait in this process, for each partition. One of packed has up to 256 KiB.
            receiver_queue_size=100,
        )
        while not stopped:
            try:
                message = consumer.receive(timeout_millis=200)
            except pulsar.Timeout:
                continue
            # The sender's X-Scope-OrgID is message.properties().get("tenant").
            try:
                lines = list(read(args.format, message.data()))
            except Exception as error:
                # Not acknowledged: it comes again after the next start, and nothing behind it is taken before. To give it
                # back and go on (negative_acknowledge) would change the order.
                raise SystemExit(f"message {message.message_id()} is not of the format {args.format}: {error}")
            # First the work, then the acknowledgement: what is under way when the process ends comes again. So each sample
            # comes at least once; who must not count one twice knows it by series and timestamp.
            sys.stdout.writelines(line + "\n" for line in lines)
            sys.stdout.flush()
            consumer.acknowledge(message)
        consumer.close()  # sends the acknowledgements that it still holds
    finally:
        client.close()


def read(format, payload):
    """Yields the lines of a message: here is where the formats differ."""
    if format == "json":  # one sample, histogram or exemplar
        yield from read_json(json.loads(payload))
    elif format == "protobuf":  # one series
        series = prometheus.TimeSeries.FromString(payload)
        yield from read_series([(label.name, label.value) for label in series.labels], series)
    else:  # packed: many series
        request = prometheus.Request.FromString(payload)
        for series in request.timeseries:
            texts = [request.symbols[ref] for ref in series.labels_refs]
            # series.metadata has the type, and the symbols of help and unit.
            yield from read_series(list(zip(texts[::2], texts[1::2])), series)


def read_series(labels, series):
    name = series_text(labels)
    for sample in series.samples:
        yield f"{name} {value_text(sample.value)} {sample.timestamp}"
    for h in series.histograms:  # native histograms; those with buckets as series of their own are samples
        count = h.count_float if h.WhichOneof("count") == "count_float" else h.count_int
        yield f"{name} {histogram_text(count, h.sum)} {h.timestamp}"
    # Exemplars, trace ids and the like, are read the same way.


def read_json(m):
    name = series_text([("__name__", m["name"]), *m["labels"].items()])
    stale = m.get("stale", False)
    if "value" in m:  # NaN, +Inf and -Inf are texts
        yield f"{name} {value_text(float(m['value']), stale)} {m['timestamp']}"
    elif "histogram" in m:
        h = m["histogram"]
        yield f"{name} {histogram_text(float(h['count']), float(h['sum']), stale)} {m['timestamp']}"


def series_text(labels):
    """Writes (name, value) pairs as name{label="value",...}."""
    name, pairs = "", []
    for label, value in labels:
        if label == "__name__":
            name = value
        else:
            escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            pairs.append(f'{label}="{escaped}"')
    return name + "{" + ",".join(pairs) + "}"


def value_text(value, stale=False):
    """Writes a value. A stale marker is a NaN of its own, told from others by its bits: the series has ended."""
    if stale or struct.pack(">d", value) == STALE:
        return "stale"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(float(value))


def histogram_text(count, total, stale=False):
    """Writes count and sum. The buckets are in the spans, with deltas (integers) or counts (floats)."""
    text = value_text(total, stale)
    return text if text == "stale" else f"histogram(count={value_text(count)},sum={text})"


if __name__ == "__main__":
    main()
