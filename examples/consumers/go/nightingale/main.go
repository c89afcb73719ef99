// Command nightingale is an example of a consumer of Nightingale's topic. It prints a line for
// each sample:
//
//	name{label="value",...} value timestamp
//
// Set the topic and the format of Nightingale's configuration:
//
//	go run . -url pulsar://127.0.0.1:6650 -topic persistent://public/default/metrics -format packed
//
// It imports pulsar-client-go and no package of Aviary.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/apache/pulsar-client-go/pulsar"
	pulsarlog "github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
)

func main() {
	url := flag.String("url", "pulsar://127.0.0.1:6650", "Pulsar")
	topic := flag.String("topic", "persistent://public/default/metrics", "Nightingale's topic")
	subscription := flag.String("subscription", "example", "name of the subscription: its place on the topic outlives the program")
	format := flag.String("format", "json", "Nightingale's format: json, protobuf or packed")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, *url, *topic, *subscription, *format, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run prints samples until ctx ends.
func run(ctx context.Context, url, topic, subscription, format string, to io.Writer) error {
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: url,
		// With authentication: Authentication: pulsar.NewAuthenticationTokenFromFile("token"),
		Logger: pulsarlog.NewLoggerWithSlog(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))),
	})
	if err != nil {
		return err
	}
	defer client.Close()
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		// A topic of a template, such as metrics-{label.job}, is many: TopicsPattern reads them
		// all.
		Topic:            topic,
		SubscriptionName: subscription,
		// One series is always on one partition, and Failover gives each partition to one consumer
		// at a time: the order of each series is kept, and more processes share the partitions.
		// Shared and Key_Shared do not keep it.
		Type: pulsar.Failover,
		// A new subscription begins with the oldest message that there is.
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		// Messages that wait in this process, for each partition. One of packed has up to 256 KiB.
		ReceiverQueueSize: 100,
	})
	if err != nil {
		return err
	}
	defer consumer.Close() // sends the acknowledgements that it still holds

	out := bufio.NewWriter(to)
	for {
		message, err := consumer.Receive(ctx)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		// The sender's X-Scope-OrgID is message.Properties()["tenant"].
		if err := printMessage(out, format, message.Payload()); err != nil {
			// Not acknowledged: it comes again after the next start, and nothing behind it is taken
			// before. To give it back and go on (Nack) would change the order.
			return fmt.Errorf("message %v is not of the format %s: %w", message.ID(), format, err)
		}
		// First the work, then the acknowledgement: what is under way when the process ends comes
		// again. So each sample comes at least once; who must not count one twice knows it by
		// series and timestamp.
		if err := out.Flush(); err != nil {
			return err
		}
		if err := consumer.Ack(message); err != nil {
			return err
		}
	}
}

// printMessage is where the formats differ.
func printMessage(out io.Writer, format string, payload []byte) error {
	switch format {
	case "json": // one sample, histogram or exemplar
		return printJSON(out, payload)
	case "protobuf": // one series
		var series prompb.TimeSeries
		if err := series.Unmarshal(payload); err != nil {
			return err
		}
		printSeries(out, &series)
		return nil
	case "packed": // many series
		return printPacked(out, payload)
	}
	return errors.New("unknown format")
}

func printSeries(out io.Writer, series *prompb.TimeSeries) {
	labels := make([]string, 0, 2*len(series.Labels))
	for _, l := range series.Labels {
		labels = append(labels, l.Name, l.Value)
	}
	name := seriesText(labels)
	for _, s := range series.Samples {
		fmt.Fprintln(out, name, valueText(s.Value, false), s.Timestamp)
	}
	for i := range series.Histograms { // native histograms; those with buckets as series of their own are samples
		h := &series.Histograms[i]
		count := h.GetCountFloat() + float64(h.GetCountInt()) // one of them is there
		fmt.Fprintln(out, name, histogramText(count, h.Sum, false), h.Timestamp)
	}
	// series.Exemplars: trace ids and the like.
}

// printPacked: in place of texts the series have numbers of symbols, and come with their type,
// help and unit.
func printPacked(out io.Writer, payload []byte) error {
	var request writev2.Request
	if err := request.Unmarshal(payload); err != nil {
		return err
	}
	for i := range request.Timeseries {
		series := &request.Timeseries[i]
		var labels []string
		for _, ref := range series.LabelsRefs {
			if int(ref) >= len(request.Symbols) {
				return fmt.Errorf("there is no symbol %d", ref)
			}
			labels = append(labels, request.Symbols[ref])
		}
		name := seriesText(labels)
		for _, s := range series.Samples {
			fmt.Fprintln(out, name, valueText(s.Value, false), s.Timestamp)
		}
		for j := range series.Histograms {
			h := &series.Histograms[j]
			count := h.GetCountFloat() + float64(h.GetCountInt())
			fmt.Fprintln(out, name, histogramText(count, h.Sum, false), h.Timestamp)
		}
	}
	return nil
}

// number is a number of the format json: NaN, +Inf and -Inf are texts.
type number float64

func (n *number) UnmarshalJSON(text []byte) error {
	v, err := strconv.ParseFloat(strings.Trim(string(text), `"`), 64)
	*n = number(v)
	return err
}

func printJSON(out io.Writer, payload []byte) error {
	var m struct {
		Name      string            `json:"name"`
		Labels    map[string]string `json:"labels"` // without the name
		Timestamp int64             `json:"timestamp"`
		Value     *number           `json:"value"`
		Histogram *struct {
			Count number `json:"count"`
			Sum   number `json:"sum"`
		} `json:"histogram"`
		Stale bool `json:"stale"`
	}
	if err := json.Unmarshal(payload, &m); err != nil {
		return err
	}
	labels := []string{"__name__", m.Name}
	for _, name := range slices.Sorted(maps.Keys(m.Labels)) {
		labels = append(labels, name, m.Labels[name])
	}
	switch {
	case m.Value != nil:
		fmt.Fprintln(out, seriesText(labels), valueText(float64(*m.Value), m.Stale), m.Timestamp)
	case m.Histogram != nil:
		fmt.Fprintln(out, seriesText(labels), histogramText(float64(m.Histogram.Count), float64(m.Histogram.Sum), m.Stale), m.Timestamp)
	}
	return nil
}

// seriesText writes names and values of labels, in turn, as name{label="value",...}.
func seriesText(labels []string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	name, pairs := "", []string{}
	for i := 0; i+1 < len(labels); i += 2 {
		if labels[i] == "__name__" {
			name = labels[i+1]
		} else {
			pairs = append(pairs, labels[i]+`="`+escape.Replace(labels[i+1])+`"`)
		}
	}
	return name + "{" + strings.Join(pairs, ",") + "}"
}

// valueText writes a value. A stale marker is a NaN of its own, told from others by its bits: the
// series has ended.
func valueText(v float64, stale bool) string {
	if stale || math.Float64bits(v) == 0x7ff0000000000002 {
		return "stale"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// histogramText writes count and sum. The buckets are in the spans, with deltas (integers) or
// counts (floats).
func histogramText(count, sum float64, stale bool) string {
	if s := valueText(sum, stale); s != "stale" {
		return "histogram(count=" + valueText(count, false) + ",sum=" + s + ")"
	}
	return "stale"
}
