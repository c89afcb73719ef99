package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/test/bench/measure"
)

// eventSink is a webhook that takes everything and notes when each event came first.
type eventSink struct {
	url    string
	server *http.Server

	mu     sync.Mutex
	seen   map[int]bool
	took   []time.Duration // from when an event was sent until it came first
	copies int             // that came again
	last   time.Time       // when an event came first
}

func newEventSink(ctx context.Context) (*eventSink, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &eventSink{url: "http://" + ln.Addr().String() + "/events", seen: make(map[int]bool)}
	s.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: s}
	go func() { _ = s.server.Serve(ln) }()
	return s, nil
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen[id] {
		s.copies++
		return
	}
	s.seen[id] = true
	s.took = append(s.took, now.Sub(time.Unix(0, int64(sent))))
	s.last = now
}

// number is the one that stands behind name.
func number(text []byte, name string) (int, error) {
	_, rest, _ := bytes.Cut(text, []byte(name))
	end := bytes.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	return strconv.Atoi(string(rest[:max(end, 0)]))
}

// await waits until n events have come, or none for a minute, and returns how many have, and when
// the last one came.
func (s *eventSink) await(ctx context.Context, n int) (int, time.Time) {
	began := time.Now()
	for ctx.Err() == nil {
		s.mu.Lock()
		came, last := len(s.seen), s.last
		s.mu.Unlock()
		if came >= n || time.Since(began) > time.Minute && time.Since(last) > time.Minute {
			return came, last
		}
		measure.Wait(ctx, 10*time.Millisecond)
	}
	return 0, time.Time{}
}

// reset forgets everything and returns what has come since.
func (s *eventSink) reset() (took []time.Duration, copies int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	took, copies = s.took, s.copies
	s.seen, s.took, s.copies = make(map[int]bool), nil, 0
	return took, copies
}

func (s *eventSink) close() error { return s.server.Close() }
