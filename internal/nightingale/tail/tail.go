// Package tail prints the samples of a topic and recognises their format. It imports remotewrite,
// format and batch to decode the messages.
package tail

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Build wires the tail of a topic to standard output.
func Build(ctx context.Context, rt *app.Runtime, pulsar messaging.Config, topic string) error {
	client, err := messaging.Dial(ctx, pulsar, messaging.WithLogger(rt.Log), messaging.WithRegisterer(rt.Metrics))
	if err != nil {
		return err
	}
	rt.OnStop("pulsar", client.Close)
	consumer, err := client.Consumer(ConsumerConfig(topic))
	if err != nil {
		return err
	}
	Start(rt, os.Stdout, consumer.Run)
	return nil
}

// ConsumerConfig returns a consumer of new messages. Its subscription is not durable: it does not
// affect other consumers, and the tail leaves none behind.
func ConsumerConfig(topic string) messaging.ConsumerConfig {
	c := messaging.DefaultConsumerConfig()
	c.Topics, c.Subscription = []string{topic}, fmt.Sprintf("nightingale-tail-%d-%d", os.Getpid(), time.Now().UnixNano())
	c.Type, c.Order = messaging.Exclusive, messaging.OrderTotal
	c.Durable, c.StartAt = false, messaging.StartLatest
	c.PrefetchBytes = 16 << 20
	return c
}

// Start prints the messages that run delivers until the process stops. If the reader of a pipe has
// ended, for instance "| head", it stops the process with success.
func Start(rt *app.Runtime, w io.Writer, run func(context.Context, messaging.Handler) error) {
	rt.Go("tail", func(ctx context.Context) error {
		err := tailTo(ctx, w, run)
		if errors.Is(err, syscall.EPIPE) {
			rt.Shutdown()
			<-ctx.Done()
			return nil
		}
		return err
	})
}

// tailTo prints the messages that run delivers until ctx ends or w fails.
func tailTo(ctx context.Context, w io.Writer, run func(context.Context, messaging.Handler) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var p printer
	var writeErr error
	err := run(ctx, func(_ context.Context, d *messaging.Delivery) error { // one at a time: the order is total
		if writeErr == nil {
			if _, writeErr = w.Write(p.print(d.Partition, d.Payload)); writeErr != nil {
				cancel()
			}
		}
		return nil
	})
	return errors.Join(err, writeErr)
}

// printer converts messages of any format to lines:
//
//	2026-11-20T19:14:32.123Z  up{job="api"}  1  partition 0
//
// It recognises the format from the message, so that a tail needs only the topic's name. It is not
// safe for concurrent use.
type printer struct {
	batch batch.Batch
}

func (p *printer) print(partition int, payload []byte) []byte {
	// A protobuf message may begin with a byte that is white space in JSON, but not with a brace.
	if len(payload) > 0 && payload[0] == '{' {
		return printJSON(partition, payload)
	}
	// A Request of 2.0 (packed), or a TimeSeries (protobuf), which becomes a WriteRequest with one
	// series.
	series := append(binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(payload))), payload...)
	for _, as := range []struct {
		decode func(*batch.Batch, []byte, remotewrite.Limits) error
		body   []byte
	}{{remotewrite.DecodeV2, payload}, {remotewrite.DecodeV1, series}} {
		p.batch.Reset()
		limits := remotewrite.Limits{Series: 1 << 20, DecodedBytes: 1 << 30, MemoryBytes: 1 << 30}
		if as.decode(&p.batch, as.body, limits) == nil && p.named() {
			return p.printBatch(partition)
		}
	}
	return fmt.Appendf(nil, "partition %d: %d bytes in no known format\n", partition, len(payload))
}

// named reports whether every series has a name. Protobuf alone can decode a message of the wrong
// type without an error.
func (p *printer) named() bool {
	for i := range p.batch.Series {
		if p.batch.Name(&p.batch.Series[i]) == "" {
			return false
		}
	}
	return len(p.batch.Series) > 0
}

// printBatch prints the series of the batch in the format json.
func (p *printer) printBatch(partition int) (text []byte) {
	var messages format.Messages
	format.EncodeJSON(&p.batch, new(format.Packing), &messages)
	for _, r := range messages.Records {
		text = append(text, printJSON(partition, r.Payload)...)
	}
	return text
}

// printJSON prints a message of the formats json or json-kafka-adapter. Most of their fields have
// the same names, but some have different types.
func printJSON(partition int, payload []byte) []byte {
	var m struct {
		Name      string            `json:"name"`
		Labels    map[string]string `json:"labels"`
		Timestamp json.RawMessage   `json:"timestamp"`
		Value     json.RawMessage   `json:"value"`
		Histogram json.RawMessage   `json:"histogram"`
		Exemplar  json.RawMessage   `json:"exemplar"`
		Stale     bool              `json:"stale"`
	}
	if err := json.Unmarshal(payload, &m); err != nil {
		return fmt.Appendf(nil, "partition %d: %d bytes of JSON that are no sample\n", partition, len(payload))
	}
	value := string(bytes.Trim(m.Value, `"`))
	switch {
	case m.Stale:
		value = "stale"
	case m.Histogram != nil:
		value = "histogram " + string(m.Histogram)
	case m.Exemplar != nil:
		value = "exemplar " + string(m.Exemplar)
	}
	at := string(bytes.Trim(m.Timestamp, `"`))
	if ms, err := strconv.ParseInt(string(m.Timestamp), 10, 64); err == nil {
		at = time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z07:00")
	}
	// Names and values come from senders: control characters could change the terminal.
	line := printable(at) + "  " + printable(m.Name)
	var labels []string
	for _, label := range slices.Sorted(maps.Keys(m.Labels)) {
		if label != batch.NameLabel {
			labels = append(labels, printable(label)+"="+strconv.Quote(m.Labels[label]))
		}
	}
	if len(labels) > 0 {
		line += "{" + strings.Join(labels, ",") + "}"
	}
	return fmt.Appendf(nil, "%s  %s  partition %d\n", line, printable(value), partition)
}

// printable quotes a text that contains unprintable characters.
func printable(s string) string {
	for _, r := range s {
		if !strconv.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}
