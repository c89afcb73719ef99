package main

import (
	"context"
	"time"

	"github.com/aviaryhq/aviary/test/demo/display"
)

// outgoing is what a Prometheus has sent and what it still holds back, read from it again and
// again.
type outgoing struct {
	known bool
	taken int64 // into its remote write: sent or held back
	reads []outgoingRead
}

// outgoingRead is one look.
type outgoingRead struct {
	at      time.Time
	taken   int64
	between int64 // handed over, and not arrived
}

const (
	outgoingEvery = 700 * time.Millisecond // no divisor of the second that Prometheus scrapes and sends in
	outgoingReads = 10
)

// poll reads what Prometheus says until ctx ends. While it does not answer the figures stand still.
func (n *nightingale) poll(ctx context.Context) error {
	tick := time.NewTicker(outgoingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		n.mu.Lock()
		arrived := n.seen.distinct() // before: what is counted as sent after it must not hide what is lost
		n.mu.Unlock()
		s, err := n.prometheus.sent(ctx)
		if err != nil {
			continue
		}
		n.mu.Lock()
		n.sent.add(time.Now(), s, arrived)
		n.mu.Unlock()
	}
}

// add notes a read.
func (o *outgoing) add(now time.Time, s sent, arrived int64) {
	o.reads = append(o.reads, outgoingRead{at: now, taken: s.all() + s.pending, between: s.all() - arrived})
	o.reads = o.reads[max(0, len(o.reads)-outgoingReads):]
	// A batch on its way is both handed over and pending: the lower one of two reads leaves it out.
	taken := o.reads[len(o.reads)-1].taken
	if len(o.reads) > 1 {
		taken = min(taken, o.reads[len(o.reads)-2].taken)
	}
	o.taken, o.known = max(o.taken, taken), true
}

// missing is what should have arrived. Samples have no numbers: those are missing that Prometheus
// had some seconds ago and that are more than all that has arrived since; and those handed over
// that were absent at every look, for what is lost stays absent.
func (o *outgoing) missing(arrived int64) int64 {
	var late int64
	for _, r := range o.reads {
		if time.Since(r.at) > display.Overdue {
			late = max(late, r.taken-arrived)
		}
	}
	lost := int64(0)
	if len(o.reads) == outgoingReads {
		lost = o.reads[0].between
		for _, r := range o.reads {
			lost = min(lost, r.between)
		}
	}
	return max(late, lost, 0)
}
