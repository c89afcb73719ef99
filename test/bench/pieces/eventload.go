package pieces

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/test/bench/measure"
)

// EventGroups is how many partition keys the events of the benchmark have.
const EventGroups = 1000

// eventText is an event of some 320 bytes. Its data has when it was sent.
func eventText(id int, sent time.Time) string {
	return `{"specversion":"1.0","id":"` + strconv.Itoa(id) + `","source":"/bench","type":"order.placed","partitionkey":"customer-` +
		strconv.Itoa(id%EventGroups) + `","datacontenttype":"application/json","data":{"sent":` + strconv.FormatInt(sent.UnixNano(), 10) +
		`,"order":"2026-11-` + strconv.Itoa(id) + `","total":129.95,"currency":"EUR","items":[{"sku":"A-1042","quantity":2},{"sku":"B-7","quantity":1}],"note":"leave at the door"}}`
}

// eventLoad posts the events from p.First to below p.Count at p.URL over p.Callers keep-alive
// connections, p.Events in each request, for at most p.Seconds, and times each request. With a rate
// it begins so many requests a second, however long they take.
//
// It writes HTTP itself: on two cores, Go's client would be a third of what is measured.
func eventLoad(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	at, err := url.Parse(p.URL)
	if err != nil {
		return err
	}
	conns := make([]*eventConn, p.Callers)
	for i := range conns {
		if conns[i], err = dialEvents(ctx, at, max(p.Events, 1)); err != nil {
			return err
		}
		defer conns[i].close()
	}
	due := make(chan struct{}, p.Callers)
	if p.Rate > 0 {
		paced, stop := context.WithTimeout(ctx, time.Duration(p.Seconds*float64(time.Second)))
		defer stop()
		go pace(paced, p.Rate, due)
	} else {
		close(due)
	}
	if err := m.Start(); err != nil {
		return err
	}
	var wg sync.WaitGroup
	var next, sent atomic.Int64
	next.Store(int64(p.First))
	times, errs := make([][]time.Duration, p.Callers), make([]error, p.Callers)
	for c := range conns {
		wg.Go(func() {
			for time.Since(m.Began).Seconds() < p.Seconds {
				if _, paced := <-due; !paced && p.Rate > 0 {
					return
				}
				first := int(next.Add(int64(conns[c].events))) - conns[c].events
				if first >= p.Count {
					return
				}
				began := time.Now()
				if errs[c] = conns[c].post(first, began); errs[c] != nil {
					return
				}
				times[c] = append(times[c], time.Since(began))
				sent.Add(int64(conns[c].events))
			}
		})
	}
	wg.Wait()
	m.Stop(int(sent.Load()))
	var all []time.Duration
	for _, t := range times {
		all = append(all, t...)
	}
	m.Latencies(all)
	return errors.Join(errs...)
}

// pace puts rate tokens a second into due until ctx ends, and closes it. Where nobody takes them
// they are not made up for.
func pace(ctx context.Context, rate int, due chan<- struct{}) {
	defer close(due)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	began, put := time.Now(), 0
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for want := int(time.Since(began).Seconds() * float64(rate)); put < want; put++ {
			select {
			case due <- struct{}{}:
			default:
			}
		}
	}
}

// eventConn is a keep-alive connection that has one request at a time.
type eventConn struct {
	conn   net.Conn
	in     *bufio.Reader
	head   string
	events int // in each request
	out    []byte
}

func dialEvents(ctx context.Context, at *url.URL, events int) (*eventConn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", at.Host)
	if err != nil {
		return nil, err
	}
	kind := "application/cloudevents+json"
	if events > 1 {
		kind = "application/cloudevents-batch+json"
	}
	return &eventConn{
		conn: conn, in: bufio.NewReaderSize(conn, 4096), events: events,
		head: "POST " + at.Path + " HTTP/1.1\r\nHost: " + at.Host + "\r\nContent-Type: " + kind + "\r\nContent-Length: ",
	}, nil
}

func (c *eventConn) close() { _ = c.conn.Close() }

// post sends the events from first on and reads the answer, which has to be 202.
func (c *eventConn) post(first int, sent time.Time) error {
	var text strings.Builder
	if c.events > 1 {
		text.WriteByte('[')
	}
	for i := range c.events {
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(eventText(first+i, sent))
	}
	if c.events > 1 {
		text.WriteByte(']')
	}
	c.out = append(c.out[:0], c.head...)
	c.out = strconv.AppendInt(c.out, int64(text.Len()), 10)
	c.out = append(c.out, "\r\n\r\n"...)
	c.out = append(c.out, text.String()...)
	if _, err := c.conn.Write(c.out); err != nil {
		return err
	}
	return c.answer()
}

func (c *eventConn) answer() error {
	status, err := c.in.ReadString('\n')
	if err != nil {
		return err
	}
	length := 0
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if name, value, _ := strings.Cut(string(line), ":"); strings.EqualFold(name, "Content-Length") {
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil {
				return err
			}
		}
	}
	if !strings.HasPrefix(status, "HTTP/1.1 202 ") {
		text, _ := io.ReadAll(io.LimitReader(c.in, int64(min(length, 1000))))
		return fmt.Errorf("%s: %s", strings.TrimSpace(status), text)
	}
	_, err = c.in.Discard(length)
	return err
}
