package nightingale

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/aviaryhq/aviary/internal/door"
)

// bodyKey names a body: senders repeat a request byte for byte. Bodies are those of
// one tenant and one protocol, told apart by a hash of 64 bits and their length.
type bodyKey struct {
	tenant, message string
	hash            uint64
	length          int
}

// attempt is a body's one way to the broker. Requests that bring the same body wait
// for the same attempt.
type attempt struct {
	key     bodyKey
	place   *list.Element // among the settled ones; nil while it is under way
	ended   time.Time     // when it was settled
	failed  bool          // it is settled, and the body has to come again
	stored  storedParts   // what earlier attempts at the body have stored, and later this one
	settled chan struct{} // closed when the two below are final

	carried contents
	err     error
}

// wait returns the attempt's result, or ctx's error when that ends first.
func (a *attempt) wait(ctx context.Context) (c contents, err error, settled bool) { //nolint:revive // err is a result here, not a failure of waiting
	select {
	case <-a.settled:
		return a.carried, a.err, true
	default:
	}
	select {
	case <-a.settled:
		return a.carried, a.err, true
	case <-ctx.Done():
		return c, ctx.Err(), false
	}
}

// ledger remembers the attempts of late, those under way and those acknowledged,
// so that a body that comes again is not published again. What failed has to be
// published when it comes again, but for the parts of it that are stored.
//
// Settled ones are bounded in entries, the oldest give way, and in age. Those under
// way are always there to be joined: the bytes in flight bound them.
type ledger struct {
	entries int
	window  time.Duration

	mu    sync.Mutex
	known map[bodyKey]*attempt
	order list.List // of the settled ones, *attempt, the oldest first
}

func newLedger(cfg Dedup) *ledger {
	return &ledger{entries: cfg.Entries, window: cfg.Window, known: make(map[bodyKey]*attempt)}
}

// claim returns the attempt at the body. first tells that the caller has to make it
// and to settle it; otherwise it is another request's.
func (l *ledger) claim(key bodyKey, body []byte) (a *attempt, first bool) {
	if l.entries == 0 {
		return &attempt{settled: make(chan struct{})}, true
	}
	key.hash, key.length = xxhash.Sum64(body), len(body)
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	var stored storedParts
	if a, ok := l.known[key]; ok {
		switch {
		case l.stale(a, now):
		case a.failed:
			stored = a.stored
		default:
			return a, false
		}
		l.remove(a)
	}
	l.trim(now)
	a = &attempt{key: key, stored: stored, settled: make(chan struct{})}
	l.known[key] = a
	return a, true
}

// trim forgets settled attempts past the bounds. l.mu is held.
func (l *ledger) trim(now time.Time) {
	for oldest := l.order.Front(); oldest != nil; oldest = l.order.Front() {
		old := oldest.Value.(*attempt) //nolint:errcheck,forcetypeassert // the list holds nothing else
		if l.order.Len() <= l.entries && !l.stale(old, now) {
			return
		}
		l.remove(old)
	}
}

// stale reports whether an attempt is too old to be of use. One under way never is.
func (l *ledger) stale(a *attempt, now time.Time) bool {
	return a.place != nil && now.Sub(a.ended) > l.window
}

// remove forgets an attempt. l.mu is held.
func (l *ledger) remove(a *attempt) {
	if a.place != nil {
		l.order.Remove(a.place)
		a.place = nil
	}
	delete(l.known, a.key)
}

// settle ends an attempt. Where the sender has to come again, what is stored is kept,
// if that is anything.
func (l *ledger) settle(a *attempt, c contents, d delivered) {
	if l.entries > 0 {
		l.keep(a, d)
	}
	a.carried, a.err = c, d.err
	close(a.settled)
}

func (l *ledger) keep(a *attempt, d delivered) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.failed = !final(d.err)
	if a.failed && len(d.stored.topics) == 0 {
		l.remove(a)
		return
	}
	if a.stored = d.stored; !a.failed {
		a.stored = storedParts{} // nobody asks for it any more, and with many topics it is large
	}
	a.ended = time.Now()
	a.place = l.order.PushBack(a)
	l.trim(a.ended)
}

// final reports whether a publishing stage's error says that all that can be stored
// is stored.
func final(err error) bool {
	refused := (*door.Refusal)(nil)
	return err == nil || errors.As(err, &refused) && refused.Reason == reasonRecordTooLarge
}

// claim is a request's hold of an attempt, until it is handed to the publishing
// stage.
type claim struct {
	ledger *ledger
	key    bodyKey
	*attempt
	mine bool // this request makes the attempt
}

// make claims the body and reports whether this request has to publish it.
func (c *claim) make(body []byte) bool {
	c.attempt, c.mine = c.ledger.claim(c.key, body)
	return c.mine
}

// give settles an attempt that did not come to be published.
func (c *claim) give(err error) {
	if c.mine {
		c.mine = false
		c.ledger.settle(c.attempt, contents{}, delivered{err: err, stored: c.stored})
	}
}
