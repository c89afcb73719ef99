// Command pigeonhole is an example of a consumer of a topic that Pigeonhole writes to. It restores
// each message as it was at its source, and prints it as a line of JSON. A value that is not text
// is {"base64":"..."}:
//
//	{"key":"k1","value":"text","headers":[["a","1"]],"time":1700000000123,"origin":{"system":"kafka",...}}
//
// It imports pulsar-client-go and no package of Aviary. -topic is the route's `to`:
//
//	go run . -url pulsar://127.0.0.1:6650 -topic persistent://public/default/orders
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/apache/pulsar-client-go/pulsar"
	pulsarlog "github.com/apache/pulsar-client-go/pulsar/log"
)

func main() {
	address := flag.String("url", "pulsar://127.0.0.1:6650", "Pulsar")
	topic := flag.String("topic", "persistent://public/default/orders", "the topic that the route writes to")
	subscription := flag.String("subscription", "example", "name of the subscription: its place on the topic outlives the program")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, *address, *topic, *subscription, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run prints messages until ctx ends.
func run(ctx context.Context, address, topic, subscription string, to io.Writer) error {
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: address,
		// With authentication: Authentication: pulsar.NewAuthenticationTokenFromFile("token"),
		Logger: pulsarlog.NewLoggerWithSlog(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))),
	})
	if err != nil {
		return err
	}
	defer client.Close()
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic:            topic,
		SubscriptionName: subscription,
		// What was in order at the source is in order on one partition here, and Failover gives
		// each partition to one consumer at a time: the order is kept, and more processes share the
		// partitions. Shared and Key_Shared do not keep it: the broker hands out whole batches.
		Type: pulsar.Failover,
		// A new subscription begins with the oldest message that there is.
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	if err != nil {
		return err
	}
	defer consumer.Close() // sends the acknowledgements that it still holds

	out := bufio.NewWriter(to)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	for {
		message, err := consumer.Receive(ctx)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		// First the work, then the acknowledgement: what is under way when the process ends comes
		// again. Who must not do a thing twice knows it by origin: its place at the source is the
		// same each time, whatever has happened between.
		if err := lines.Encode(restore(message)); err != nil {
			return err
		}
		if err := out.Flush(); err != nil {
			return err
		}
		if err := consumer.Ack(message); err != nil {
			return err
		}
	}
}

// data is text, or bytes that are none; nil is null.
type data []byte

func (d data) MarshalJSON() ([]byte, error) {
	switch {
	case d == nil:
		return []byte("null"), nil
	case !utf8.Valid(d):
		return json.Marshal(map[string]string{"base64": base64.StdEncoding.EncodeToString(d)})
	}
	return json.Marshal(string(d))
}

// original is a message as it was at its source.
type original struct {
	Key     data              `json:"key"`   // null: it has none
	Value   data              `json:"value"` // null: a tombstone
	Headers [][2]data         `json:"headers"`
	Time    any               `json:"time"` // milliseconds since 1970; null: its producer said none
	Origin  *origin           `json:"origin"`
	AMQP    map[string]string `json:"amqp,omitempty"` // what RabbitMQ knows besides: exchange, routing_key, content_type and others
}

// origin is where the message was first taken from. Partition and offset are null where the source
// has none.
type origin struct {
	System    string `json:"system"`
	Cluster   string `json:"cluster"`
	Topic     string `json:"topic"`
	Partition *int64 `json:"partition"`
	Offset    *int64 `json:"offset"`
	ID        string `json:"id"` // of Kafka's topic, of Pulsar's or RabbitMQ's message, or empty
}

func restore(message pulsar.Message) original {
	properties := maps.Clone(message.Properties())
	take := func(name string) string {
		value := properties[name]
		delete(properties, name)
		return value
	}
	m := original{Value: message.Payload()}
	if message.IsNullValue() {
		m.Value = nil
	} else if take("aviary_empty") == "true" || m.Value == nil {
		m.Value = data{} // clients may show an empty value that is compressed as a few bytes
	}
	if message.Key() != "" {
		m.Key = data(message.Key())
	}
	switch take("pigeonhole.key_encoding") {
	case "base64": // Pulsar's keys are text
		if key, err := base64.StdEncoding.DecodeString(message.Key()); err == nil {
			m.Key = key
		}
	case "empty":
		m.Key = data{}
	}
	if t := message.EventTime(); t.UnixMilli() > 0 {
		m.Time = t.UnixMilli()
	}
	if text := take("pigeonhole.time"); text != "" { // what Pulsar's field cannot hold
		m.Time = text // seconds, and an s behind
		if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
			m.Time = ms
		} else if text == "none" {
			m.Time = nil
		}
	}
	// The places that routes took it from. Without it the two others are the application's own.
	if take("pigeonhole.hops") != "" {
		m.Origin = readOrigin(take("pigeonhole.origin")) // absent with `provenance: hops`
		take("pigeonhole.from")                          // the place before this one, after more than one hop
	}
	if text := take("pigeonhole.amqp"); text != "" {
		m.AMQP = map[string]string{}
		for part := range strings.SplitSeq(text, "&") {
			name, value, _ := strings.Cut(part, "=")
			m.AMQP[name] = unescape(value)
		}
	}
	entry := take("pigeonhole.headers")
	m.Headers = readHeaders(properties, entry)
	return m
}

// readOrigin reads system;cluster;topic;partition;offset;id.
func readOrigin(text string) *origin {
	parts := strings.Split(text, ";")
	if len(parts) < 5 {
		return nil
	}
	number := func(s string) *int64 {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return &n
		}
		return nil
	}
	o := &origin{System: unescape(parts[0]), Cluster: unescape(parts[1]), Topic: unescape(parts[2]), Partition: number(parts[3]), Offset: number(parts[4])}
	if len(parts) > 5 {
		o.ID = unescape(parts[5])
	}
	return o
}

// readHeaders returns the headers in their order. Those that are text are properties, sorted by
// name; where that is not all, the entry says what is, separated by commas: 3 is the fourth
// property, 0-2 are the first three, 4:I the fifth, which was a number of RabbitMQ, and name=value
// is a header that Pulsar has no property for. Without an entry the properties are all.
func readHeaders(properties map[string]string, entry string) [][2]data {
	headers, names := [][2]data{}, slices.Sorted(maps.Keys(properties))
	used := make([]bool, len(names))
	property := func(i int) {
		if i < len(names) && !used[i] {
			used[i] = true
			headers = append(headers, [2]data{data(names[i]), data(properties[names[i]])})
		}
	}
	for _, item := range split(entry) {
		if name, value, ok := strings.Cut(item, "="); ok {
			headers = append(headers, [2]data{data(unescape(name)), readValue(value)})
			continue
		}
		item, _, _ = strings.Cut(item, ":")
		from, to, _ := strings.Cut(item, "-")
		first, err := strconv.Atoi(from)
		if err != nil {
			continue
		}
		property(first)
		for last, _ := strconv.Atoi(to); first < last && first < len(names); {
			first++
			property(first)
		}
	}
	for i := range names {
		property(i)
	}
	return headers
}

// split splits at commas, but not within the brackets of RabbitMQ's arrays and tables.
func split(entry string) (items []string) {
	depth, from := 0, 0
	for i, c := range entry {
		switch {
		case c == '(' || c == '{':
			depth++
		case c == ')' || c == '}':
			depth--
		case c == ',' && depth == 0:
			items, from = append(items, entry[from:i]), i+1
		}
	}
	if entry != "" {
		items = append(items, entry[from:])
	}
	return items
}

// readValue reads a letter and the value: S is text, y and x are bytes, V is null. The other
// letters are RabbitMQ's types: numbers, booleans and times as people write them, arrays
// A(value,value) and tables F{name=value,name=value}.
func readValue(text string) data {
	if text == "" || text[0] == 'V' {
		return nil
	}
	switch text[0] {
	case 'S':
		return data(unescape(text[1:]))
	case 'x', 'y':
		value, _ := base64.RawURLEncoding.AppendDecode(data{}, []byte(text[1:]))
		return value
	case 'A', 'F':
		return data(text)
	}
	return data(text[1:])
}

// unescape reads %XX as a byte.
func unescape(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return text
}
