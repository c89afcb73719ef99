package senders

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/aviaryhq/aviary/test/bench/measure"
)

// EventGroups is the number of partition keys of the events.
const EventGroups = 1000

// eventText returns an event of some 320 bytes. Its data has the time when it was sent.
func eventText(id int, sent time.Time) string {
	number, customer, at := strconv.Itoa(id), strconv.Itoa(id%EventGroups), strconv.FormatInt(sent.UnixNano(), 10)
	return `{"specversion":"1.0","id":"` + number + `","source":"/bench","type":"order.placed","partitionkey":"customer-` +
		customer + `","datacontenttype":"application/json","data":{"sent":` + at + `,"order":"2026-11-` + number +
		`","total":129.95,"currency":"EUR","items":[{"sku":"A-1042","quantity":2},{"sku":"B-7","quantity":1}],` +
		`"note":"leave at the door"}}`
}

// Events posts the events from p.First to below p.Count at p.URL over p.Callers keep-alive
// connections, p.Batch in each request, for at most p.Seconds, and times each request. With a rate
// it begins so many requests a second, however long they take.
//
// It writes HTTP itself: on two cores, Go's client would be a third of what is measured.
func Events(ctx context.Context, p Load, m *measure.Meter) error {
	at, err := url.Parse(p.URL)
	if err != nil {
		return err
	}
	events, kind := max(p.Batch, 1), "cloudevents"
	if events > 1 {
		kind = "cloudevents-batch"
	}
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\n", at.Path, at.Host) +
		"Content-Type: application/" + kind + "+json\r\nContent-Length: "
	conns := make([]net.Conn, p.Callers)
	for i := range conns {
		if conns[i], err = new(net.Dialer).DialContext(ctx, "tcp", at.Host); err != nil {
			return err
		}
		defer conns[i].Close()
	}
	// Requests that are due while all connections are busy are made up for, at most one for each.
	limit := rate.Inf
	if p.Rate > 0 {
		limit = rate.Limit(p.Rate)
	}
	due := rate.NewLimiter(limit, p.Callers)
	due.AllowN(time.Now(), p.Callers) // a limiter begins with all of its tokens
	if err := m.Start(); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, seconds(p.Seconds))
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	next.Store(int64(p.First))
	var mu sync.Mutex
	var times []time.Duration
	for _, conn := range conns {
		in, texts := bufio.NewReader(conn), make([]string, events)
		group.Go(func() error {
			for due.Wait(ctx) == nil {
				first := int(next.Add(int64(events))) - events
				if first >= p.Count {
					return nil
				}
				began := time.Now()
				for i := range texts {
					texts[i] = eventText(first+i, began)
				}
				if err := postEvents(conn, in, head, texts); err != nil {
					return err
				}
				took := time.Since(began)
				mu.Lock()
				times = append(times, took)
				mu.Unlock()
			}
			return nil
		})
	}
	err = group.Wait()
	m.Stop(len(times) * events)
	m.Latencies(times)
	return err
}

// postEvents posts the texts and reads the answer, which has to be 202.
func postEvents(conn io.Writer, in *bufio.Reader, head string, texts []string) error {
	body := texts[0]
	if len(texts) > 1 {
		body = "[" + strings.Join(texts, ",") + "]"
	}
	if _, err := io.WriteString(conn, head+strconv.Itoa(len(body))+"\r\n\r\n"+body); err != nil {
		return err
	}
	status, err := in.ReadString('\n')
	length := 0
	for line := []byte(status); err == nil && len(line) > len("\r\n"); line, err = in.ReadSlice('\n') {
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(value))) // if it is no number, the next status is not 202
		}
	}
	if err != nil {
		return err
	}
	if !strings.HasPrefix(status, "HTTP/1.1 202 ") {
		text, _ := io.ReadAll(io.LimitReader(in, int64(min(length, 1000))))
		return fmt.Errorf("%s: %s", strings.TrimSpace(status), text)
	}
	_, err = in.Discard(length)
	return err
}
