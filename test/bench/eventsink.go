package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/aviaryhq/aviary/test/bench/load"
)

// eventSink is a webhook that takes everything.
type eventSink struct {
	*httptest.Server
	came chan arrival
	seen map[int]bool
}

// arrival is one delivery of an event.
type arrival struct {
	id       int
	sent, at time.Time
}

// newEventSink returns a webhook that can keep as many arrivals as the largest load has events.
func newEventSink() *eventSink {
	s := &eventSink{came: make(chan arrival, 100_000), seen: map[int]bool{}}
	s.Server = httptest.NewServer(s)
	return s
}

// ServeHTTP takes a delivery in structured mode.
func (s *eventSink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	text, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	id, err1 := number(text, `"id":"`)
	sent, err2 := number(text, `"sent":`)
	if errors.Join(err, err1, err2) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.came <- arrival{id, time.Unix(0, int64(sent)), now}
}

// number returns the number after name.
func number(text []byte, name string) (int, error) {
	_, rest, _ := bytes.Cut(text, []byte(name))
	end := bytes.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	return strconv.Atoi(string(rest[:max(end, 0)]))
}

// await waits until wanted events have come for the first time, or nothing for a minute. It returns
// figures (deliveries per second count from began until the last one), and latencies.
func (s *eventSink) await(ctx context.Context, wanted int, began time.Time) (map[string]float64, *hdrhistogram.Histogram) {
	latencies, f := load.NewHistogram(), map[string]float64{"deliveries_s": 0, "lost": float64(wanted), "duplicated": 0}
	for f["lost"] > 0 {
		select {
		case one := <-s.came:
			if s.seen[one.id] {
				f["duplicated"]++
				continue
			}
			s.seen[one.id] = true
			load.Record(latencies, one.at.Sub(one.sent))
			f["lost"]--
			f["deliveries_s"] = float64(latencies.TotalCount()) / one.at.Sub(began).Seconds()
		case <-time.After(time.Minute):
			return f, latencies
		case <-ctx.Done():
			return f, latencies
		}
	}
	return f, latencies
}
