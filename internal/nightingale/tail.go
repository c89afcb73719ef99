package nightingale

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Flags registers the command line's own flags.
func Flags(fs *flag.FlagSet, cfg *Config) {
	fs.BoolFunc("tail", "print the samples of the topic as they arrive, until Ctrl-C, instead of receiving any", func(string) error {
		cfg.Tail = true
		// A tail runs beside a receiver, whose admin server has the usual port, and
		// its log is among the samples on a terminal.
		cfg.Admin.Listen, cfg.Log.Level = "127.0.0.1:0", "warn"
		return nil
	})
	fs.StringVar(&cfg.TailTopic, "tail.topic", cfg.TailTopic, "the `topic` that -tail reads, where it is not the configured one")
}

// buildTail wires the tail: a consumer without a position of its own, which takes
// nothing from anybody and leaves nothing behind.
func buildTail(ctx context.Context, rt *app.Runtime, cfg Config) error {
	topic := cfg.Topic
	if cfg.TailTopic != "" {
		topic = cfg.TailTopic
	}
	client, err := messaging.Dial(ctx, cfg.Pulsar, messaging.WithLogger(rt.Log), messaging.WithRegisterer(rt.Metrics))
	if err != nil {
		return err
	}
	rt.OnStop("pulsar", client.Close)
	consumer, err := client.Consumer(tailConfig(topic))
	if err != nil {
		return err
	}
	startTail(rt, os.Stdout, consumer.Run)
	return nil
}

// startTail prints what run delivers until the process stops. It stops the process, with
// success, when nobody reads what is printed any more, as behind "| head".
func startTail(rt *app.Runtime, w io.Writer, run func(context.Context, messaging.Handler) error) {
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

// tailConfig subscribes without leaving a position behind, from now on.
func tailConfig(topic string) messaging.ConsumerConfig {
	c := messaging.DefaultConsumerConfig()
	c.Topics, c.Subscription = []string{topic}, fmt.Sprintf("nightingale-tail-%d-%d", os.Getpid(), time.Now().UnixNano())
	c.Type, c.Order = messaging.Exclusive, messaging.OrderTotal
	c.Durable, c.StartAt = false, messaging.StartLatest
	c.PrefetchBytes = 16 << 20
	return c
}

// tailTo prints what run delivers. Output is held back for a moment only while more
// of it comes.
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

// tailPrinter makes lines of messages of any format:
//
//	2026-11-20T19:14:32.123Z  up{job="api"}  1  partition 0
//
// The format is seen by looking at the message, so that a tail needs no more than
// the topic's name. It is not for concurrent use.
type tailPrinter struct {
	batch batch
}

func (p *tailPrinter) print(partition int, payload []byte) []byte {
	// Protobuf may begin with what is white space in JSON, but not with a brace.
	if len(payload) > 0 && payload[0] == '{' {
		return printJSON(nil, partition, payload)
	}
	// A WriteRequest (format packed), a Request of 2.0 (packed-v2), or a TimeSeries
	// (protobuf), which is what the first is made of.
	for _, as := range []struct {
		decode func(*batch, []byte, Limits) error
		body   []byte
	}{{decodeV1, payload}, {decodeV2, payload}, {decodeV1, wrapSeries(payload)}} {
		p.batch.reset()
		if as.decode(&p.batch, as.body, tailLimits()) == nil && p.named() {
			return p.printBatch(nil, partition)
		}
	}
	return fmt.Appendf(nil, "partition %d: %d bytes in no known format\n", partition, len(payload))
}

func tailLimits() Limits { return Limits{Series: 1 << 20, DecodedBytes: 1 << 30, MemoryBytes: 1 << 30} }

// wrapSeries makes a WriteRequest of a TimeSeries.
func wrapSeries(series []byte) []byte {
	return append(binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(series))), series...)
}

// named reports whether every series has a name: protobuf says little about what it
// is not.
func (p *tailPrinter) named() bool {
	for i := range p.batch.series {
		if !slices.ContainsFunc(of(p.batch.labels, p.batch.series[i].labels), func(l label) bool { return l.name == nameLabel && l.value != "" }) {
			return false
		}
	}
	return len(p.batch.series) > 0
}

func (p *tailPrinter) printBatch(dst []byte, partition int) []byte {
	b := &p.batch
	for i := range b.series {
		s := &b.series[i]
		var name string
		labels := make(map[string]string)
		for _, l := range of(b.labels, s.labels) {
			if l.name == nameLabel {
				name = l.value
			} else {
				labels[l.name] = l.value
			}
		}
		for _, v := range of(b.samples, s.samples) {
			dst = appendLine(dst, v.timestamp, name, labels, floatText(v.value, isStale(v.value)), partition)
		}
		for j := range of(b.histograms, s.histograms) {
			h := &of(b.histograms, s.histograms)[j]
			dst = appendLine(dst, h.timestamp, name, labels, string(appendHistogram([]byte("histogram "), b, h)), partition)
		}
		for _, e := range of(b.exemplars, s.exemplars) {
			text := "exemplar " + floatText(e.value, false) + " " + string(appendLabels(nil, of(b.marks, e.labels)))
			dst = appendLine(dst, e.timestamp, name, labels, text, partition)
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

// printJSON prints a message of the formats json and json-kafka-adapter: they share
// the names of most fields, not the types of all.
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
	delete(m.Labels, nameLabel)
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

// appendTimed writes one line. Names and values come from senders: what could move a
// terminal's cursor is quoted.
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

// printable quotes a text that has anything in it that is not to be seen.
func printable(s string) string {
	for _, r := range s {
		if !strconv.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}
