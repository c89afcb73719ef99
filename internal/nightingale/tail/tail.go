// Package tail prints the messages of a topic. It recognises their format.
package tail

import (
	"bufio"
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
	"syscall"
	"time"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

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

// ConsumerConfig returns a consumer of new messages with a non-durable subscription.
func ConsumerConfig(topic string) messaging.ConsumerConfig {
	c := messaging.DefaultConsumerConfig()
	c.Topics, c.Subscription = []string{topic}, fmt.Sprintf("nightingale-tail-%d-%d", os.Getpid(), time.Now().UnixNano())
	c.Type, c.Order = messaging.Exclusive, messaging.OrderTotal
	c.Durable, c.StartAt = false, messaging.StartLatest
	c.PrefetchBytes = 16 << 20
	return c
}

// tailTo prints the messages that run delivers. It buffers output only while further output follows
// immediately.
func tailTo(ctx context.Context, w io.Writer, run func(context.Context, messaging.Handler) error) error {
	lines := make(chan []byte, 64)
	printed := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		printed <- printLines(w, lines)
		cancel()
	}()
	var p tailPrinter
	err := run(ctx, func(ctx context.Context, d *messaging.Delivery) error {
		select {
		case lines <- p.print(d.Partition, d.Payload):
		case <-ctx.Done():
		}
		return nil
	})
	close(lines)
	return errors.Join(err, <-printed)
}

// printLines writes until lines is closed.
func printLines(w io.Writer, lines <-chan []byte) error {
	out := bufio.NewWriterSize(w, 64<<10)
	for text := range lines {
		if _, err := out.Write(text); err != nil {
			return err
		}
		if len(lines) == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
	return out.Flush()
}

// tailPrinter converts messages of any format to lines:
//
//	2026-11-20T19:14:32.123Z  up{job="api"}  1  partition 0
//
// It recognises the format from the message, so that a tail needs only the topic's name. It is not
// safe for concurrent use.
type tailPrinter struct {
	batch batch.Batch
}

func (p *tailPrinter) print(partition int, payload []byte) []byte {
	// A protobuf message may begin with a byte that is white space in JSON, but not with a brace.
	if len(payload) > 0 && payload[0] == '{' {
		return printJSON(nil, partition, payload)
	}
	// A Request of 2.0 (packed), or a TimeSeries (protobuf), which becomes a WriteRequest with one
	// series.
	for _, as := range []struct {
		decode func(*batch.Batch, []byte, remotewrite.Limits) error
		body   []byte
	}{{remotewrite.DecodeV2, payload}, {remotewrite.DecodeV1, wrapSeries(payload)}} {
		p.batch.Reset()
		if as.decode(&p.batch, as.body, tailLimits()) == nil && p.named() {
			return p.printBatch(nil, partition)
		}
	}
	return fmt.Appendf(nil, "partition %d: %d bytes in no known format\n", partition, len(payload))
}

func tailLimits() remotewrite.Limits {
	return remotewrite.Limits{Series: 1 << 20, DecodedBytes: 1 << 30, MemoryBytes: 1 << 30}
}

// wrapSeries returns a WriteRequest that contains a TimeSeries.
func wrapSeries(series []byte) []byte {
	return append(binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(series))), series...)
}

// named reports whether every series has a name. Protobuf alone can decode a message of the wrong
// type without an error.
func (p *tailPrinter) named() bool {
	for i := range p.batch.Series {
		if !slices.ContainsFunc(batch.Slice(p.batch.Labels, p.batch.Series[i].Labels), func(l batch.Label) bool { return l.Name == batch.NameLabel && l.Value != "" }) {
			return false
		}
	}
	return len(p.batch.Series) > 0
}

func (p *tailPrinter) printBatch(dst []byte, partition int) []byte {
	b := &p.batch
	for i := range b.Series {
		s := &b.Series[i]
		var name string
		labels := make(map[string]string)
		for _, l := range batch.Slice(b.Labels, s.Labels) {
			if l.Name == batch.NameLabel {
				name = l.Value
			} else {
				labels[l.Name] = l.Value
			}
		}
		for _, v := range batch.Slice(b.Samples, s.Samples) {
			dst = appendLine(dst, v.Timestamp, name, labels, floatText(v.Value, batch.IsStale(v.Value)), partition)
		}
		for j := range batch.Slice(b.Histograms, s.Histograms) {
			h := &batch.Slice(b.Histograms, s.Histograms)[j]
			dst = appendLine(dst, h.Timestamp, name, labels, string(format.AppendHistogram([]byte("histogram "), b, h)), partition)
		}
		for _, e := range batch.Slice(b.Exemplars, s.Exemplars) {
			text := "exemplar " + floatText(e.Value, false) + " " + string(format.AppendLabels(nil, batch.Slice(b.ExemplarLabels, e.Labels), true))
			dst = appendLine(dst, e.Timestamp, name, labels, text, partition)
		}
	}
	return dst
}

func floatText(v float64, stale bool) string {
	if stale {
		return "stale"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// printJSON prints a message of the formats json or json-kafka-adapter. Most of their fields have
// the same names, but some have different types.
func printJSON(dst []byte, partition int, payload []byte) []byte {
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
		return fmt.Appendf(dst, "partition %d: %d bytes of JSON that are no sample\n", partition, len(payload))
	}
	delete(m.Labels, batch.NameLabel)
	value := string(bytes.Trim(m.Value, `"`))
	switch {
	case m.Stale:
		value = "stale"
	case m.Histogram != nil:
		value = "histogram " + string(m.Histogram)
	case m.Exemplar != nil:
		value = "exemplar " + string(m.Exemplar)
	}
	if ms, err := strconv.ParseInt(string(m.Timestamp), 10, 64); err == nil {
		return appendLine(dst, ms, m.Name, m.Labels, value, partition)
	}
	return appendTimed(dst, string(bytes.Trim(m.Timestamp, `"`)), m.Name, m.Labels, value, partition)
}

func appendLine(dst []byte, ms int64, name string, labels map[string]string, value string, partition int) []byte {
	return appendTimed(dst, time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z07:00"), name, labels, value, partition)
}

// appendTimed appends one line. Names and values come from senders: it quotes control characters,
// which could change the terminal.
func appendTimed(dst []byte, at, name string, labels map[string]string, value string, partition int) []byte {
	dst = append(dst, printable(at)...)
	dst = append(append(dst, "  "...), printable(name)...)
	for i, key := range slices.Sorted(maps.Keys(labels)) {
		dst = append(dst, "{,"[min(i, 1)])
		dst = append(append(dst, printable(key)...), '=')
		dst = strconv.AppendQuote(dst, labels[key])
	}
	if len(labels) > 0 {
		dst = append(dst, '}')
	}
	dst = append(append(dst, "  "...), printable(value)...)
	return fmt.Appendf(dst, "  partition %d\n", partition)
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
