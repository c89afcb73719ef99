package pieces

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/test/bench/measure"

	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// remoteWrite is the load generator: p.Callers connections, each of which sends
// p.Count requests, made before the clock starts, one after the other. With Count 0
// it sends until p.Seconds have passed. As Prometheus does, it repeats what is
// answered 5xx until it is taken.
func remoteWrite(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: p.Callers, DisableCompression: true}, Timeout: 30 * time.Second}
	bodies := make([]*measure.RemoteBodies, p.Callers)
	prepared := make([][][]byte, p.Callers)
	for c := range bodies {
		bodies[c] = measure.NewRemoteBodies(c, p.Remote)
		for n := range p.Count {
			prepared[c] = append(prepared[c], bodies[c].Body(n))
		}
	}
	if err := m.Start(); err != nil {
		return err
	}
	var wg sync.WaitGroup
	var sent, refused atomic.Int64
	times, errs := make([][]time.Duration, p.Callers), make([]error, p.Callers)
	for c := range p.Callers {
		wg.Go(func() {
			for n := 0; ; n++ {
				if p.Count > 0 && n == p.Count || p.Count == 0 && time.Since(m.Began).Seconds() >= p.Seconds {
					return
				}
				var body []byte
				if p.Count > 0 {
					body = prepared[c][n]
				} else {
					body = bodies[c].Body(n)
				}
				began := time.Now()
				again, err := post(ctx, client, p.URL, p.Remote.Version, body)
				refused.Add(int64(again))
				if err != nil {
					errs[c] = err
					return
				}
				times[c] = append(times[c], time.Since(began))
				sent.Add(int64(p.Remote.PerRequest()))
			}
		})
	}
	wg.Wait()
	m.Stop(int(sent.Load()))
	m.Outcome.Refused = int(refused.Load())
	var all []time.Duration
	for _, t := range times {
		all = append(all, t...)
	}
	m.Latencies(all)
	return errors.Join(errs...)
}

// post sends a body until it is taken, and returns how often it was refused.
func post(ctx context.Context, client *http.Client, url string, version int, body []byte) (refused int, err error) {
	contentType, spoken := "application/x-protobuf", "0.1.0"
	if version == 2 {
		contentType, spoken = "application/x-protobuf;proto=io.prometheus.write.v2.Request", "2.0.0"
	}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return refused, err
		}
		req.Header.Set("Content-Type", contentType)
		req.Header.Set("Content-Encoding", "snappy")
		req.Header.Set("X-Prometheus-Remote-Write-Version", spoken)
		if refused > 0 {
			req.Header.Set("Retry-Attempt", strconv.Itoa(refused))
		}
		resp, err := client.Do(req)
		if err != nil {
			return refused, err
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		switch {
		case err != nil:
			return refused, err
		case resp.StatusCode/100 == 2:
			return refused, nil
		case resp.StatusCode/100 != 5:
			return refused, fmt.Errorf("%s: %s", resp.Status, text)
		}
		refused++
		select { // Prometheus begins with 30 ms and ends with 5 s
		case <-time.After(min(30*time.Millisecond<<min(refused, 10), 5*time.Second)):
		case <-ctx.Done():
			return refused, ctx.Err()
		}
	}
}

// rawJSON produces, with the plain client, messages such as Nightingale makes of the
// load: as large, with as many keys.
func rawJSON(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	client, err := rawClient(p)
	if err != nil {
		return err
	}
	defer client.Close()
	producer, err := client.CreateProducer(opsOptions(p.Topic))
	if err != nil {
		return err
	}
	messages := make([]pulsar.ProducerMessage, 0, p.Callers*measure.RemoteSeries)
	for c := range p.Callers {
		for series := range measure.RemoteSeries {
			labels := measure.RemoteLabels(c, series)
			rest := map[string]string{}
			for _, l := range labels[1:] {
				rest[l[0]] = l[1]
			}
			payload, err := json.Marshal(struct {
				Name      string            `json:"name"`
				Labels    map[string]string `json:"labels"`
				Timestamp int64             `json:"timestamp"`
				Value     float64           `json:"value"`
			}{labels[0][1], rest, measure.FirstTime, float64(series)*1.25 + float64(c)})
			if err != nil {
				return err
			}
			messages = append(messages, pulsar.ProducerMessage{Key: fmt.Sprintf("%016x", len(messages)*0x9e3779b9), Payload: payload})
		}
	}
	var t tally
	done := func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { t.note(err) }
	if err := m.Start(); err != nil {
		return err
	}
	for range p.Count {
		for i := range messages {
			message := messages[i]
			producer.SendAsync(ctx, &message, done)
		}
	}
	if err := producer.FlushWithCtx(ctx); err != nil {
		return err
	}
	return t.stop(m)
}

// checkRemote reads all of a topic, each partition in its order, and counts the
// samples: distinct ones, those that came once too often, and those that came before
// an earlier one of their series.
func checkRemote(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	client, err := library(ctx, p)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(ctx) }()
	cfg := messaging.DefaultConsumerConfig()
	cfg.Topics, cfg.Subscription = []string{p.Topic}, "check"
	cfg.Type, cfg.Order = messaging.Exclusive, messaging.OrderTotal
	cfg.DrainIdle = 10 * time.Second
	consumer, err := client.Consumer(cfg)
	if err != nil {
		return err
	}
	series := p.Remote.PerRequest()
	next := make([]int64, p.Callers*series)
	count := func(connection, number string, timestamp int64) error {
		c, err := strconv.Atoi(connection)
		if err != nil {
			return err
		}
		s, err := strconv.Atoi(number)
		if err != nil || c*series+s >= len(next) {
			return fmt.Errorf("unknown series %s of connection %s", number, connection)
		}
		switch n, want := timestamp-measure.FirstTime, &next[c*series+s]; {
		case n == *want:
			*want++
			m.Outcome.Distinct++
		case n < *want:
			m.Outcome.Duplicates++
		default:
			m.Outcome.Disordered++
			*want = n + 1
			m.Outcome.Distinct++
		}
		return nil
	}
	decode := checkJSON
	switch p.Format {
	case "packed":
		decode = checkPacked
	}
	if err := m.Start(); err != nil {
		return err
	}
	var bad error
	n, err := consumer.Drain(ctx, func(_ context.Context, d *messaging.Delivery) error {
		if err := decode(d.Payload, count); err != nil {
			bad = err
		}
		return nil
	})
	m.Stop(n)
	return errors.Join(err, bad)
}

func checkJSON(payload []byte, count func(connection, series string, timestamp int64) error) error {
	var message struct {
		Labels struct {
			Connection string `json:"connection"`
			Series     string `json:"series"`
		} `json:"labels"`
		Timestamp int64 `json:"timestamp"`
	}
	if err := json.Unmarshal(payload, &message); err != nil {
		return err
	}
	return count(message.Labels.Connection, message.Labels.Series, message.Timestamp)
}

func checkPacked(payload []byte, count func(connection, series string, timestamp int64) error) error {
	var req writev2.Request
	if err := req.Unmarshal(payload); err != nil {
		return err
	}
	for i := range req.Timeseries {
		var connection, series string
		refs := req.Timeseries[i].LabelsRefs
		for l := 0; l < len(refs); l += 2 {
			switch req.Symbols[refs[l]] {
			case "connection":
				connection = req.Symbols[refs[l+1]]
			case "series":
				series = req.Symbols[refs[l+1]]
			}
		}
		for _, sample := range req.Timeseries[i].Samples {
			if err := count(connection, series, sample.Timestamp); err != nil {
				return err
			}
		}
	}
	return nil
}
