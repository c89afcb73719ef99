//go:build !race

package messaging_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// modelPlan is what one seed drives: who publishes and consumes what, and what breaks meanwhile.
// The same seed makes the same plan; what comes of it depends on the scheduler, too.
type modelPlan struct {
	seed       uint64
	partitions int // 0: a topic without
	keys       int
	padding    int // the largest payload, roughly

	consumer  messaging.ConsumerConfig
	consumers int // one or two, each of a client of its own
	async     bool
	handlers  handlerPlan
	restart   time.Duration // not 0: the first consumer's Run ends then, and begins again

	publishers []publisherPlan
	exclusive  bool // they own the topic, one after the other
	faults     []faultPlan
}

// handlerPlan says what handlers do, in how many of 1,000 messages.
type handlerPlan struct {
	slow, hang, fail, later, reject int
}

// publisherPlan is one stream of records.
type publisherPlan struct {
	name      string
	raw       bool // stored by the server, in batches of its own
	records   int
	pause     time.Duration // between two records, at most
	earlyEnds int           // in how many of 1,000 calls the context ends early
	profile   messaging.Profile
	begin     time.Duration
}

// faultPlan is one fault: it strikes behind the one before it, and lasts.
type faultPlan struct {
	kind        faultKind
	after, last time.Duration
	n           int // what it means is the fault's affair
}

type faultKind string

const (
	faultCut            faultKind = "cut"             // all connections
	faultCutOne         faultKind = "cut one"         // those of one client
	faultLoseAcks       faultKind = "lose acks"       // then cut, or close the consumers
	faultStall          faultKind = "stall"           // the server reads nothing
	faultRefuse         faultKind = "refuse"          // no connections for a while
	faultCloseConsumers faultKind = "close consumers" // by command
	faultEndSessions    faultKind = "end sessions"    // the same, and resubscribing is refused
	faultCloseProducers faultKind = "close producers"
	faultLoseReceipts   faultKind = "lose receipts" // of entries that are stored
	faultLoseEntries    faultKind = "lose entries"  // then cut
	faultHoldEntries    faultKind = "hold entries"
	faultHoldReceipts   faultKind = "hold receipts"
	faultSlow           faultKind = "slow"
	faultSendError      faultKind = "send error"
	faultTwice          faultKind = "dispatch twice"
	faultChangeActive   faultKind = "change active" // of a failover subscription
	faultFence          faultKind = "fence"
	faultTakeover       faultKind = "takeover" // an exclusive publisher is cut off, another takes over
)

func (p modelPlan) String() string {
	var b strings.Builder
	c := p.consumer
	fmt.Fprintf(&b, "seed %d: %d partitions, %d keys, payloads to %d; ", p.seed, p.partitions, p.keys, p.padding)
	fmt.Fprintf(&b, "%d %s consumers, order %s, async %t, concurrency %d, prefetch %d/%d, ack every %s/%d, batch index %t, in place %t, attempts %d, restart %s; ",
		p.consumers, c.Type, c.Order, p.async, c.Concurrency, c.PrefetchMessages, c.PrefetchBytes, c.AckEvery, c.AckMessages,
		c.AckBatchIndex, c.Retry.InPlace, c.Retry.MaxAttempts, p.restart)
	fmt.Fprintf(&b, "handlers %+v; exclusive %t", p.handlers, p.exclusive)
	for _, s := range p.publishers {
		fmt.Fprintf(&b, "\n  publisher %s: raw %t, %d records, begins after %s, pause %s, earlyEnds %d, batch %d, linger %s, group commit %t, pending %d, %s",
			s.name, s.raw, s.records, s.begin, s.pause, s.earlyEnds, s.profile.BatchRecords, s.profile.Linger, s.profile.GroupCommit,
			s.profile.MaxPendingRecords, s.profile.Admission)
	}
	for _, f := range p.faults {
		fmt.Fprintf(&b, "\n  after %s: %s for %s (%d)", f.after, f.kind, f.last, f.n)
	}
	return b.String()
}

// loose reports whether what is handled again need not be followed by all behind it, in a group
// that more than one consumer, or Run, has had. Another one starts without knowing what was
// handled, and what is redelivered to it is not always everything from one place on:
//   - a batch that was handled in part comes again whole, and what is behind it of a key may be
//     acknowledged;
//   - acknowledgements that a connection took along are those of the messages before the one whose
//     handler ended next. On a Key_Shared subscription that holds for the sessions of one consumer,
//     too: entries are acknowledged one by one;
//   - acknowledgements of the consumer that was active may arrive while the server sends to the new
//     one, which then gets what comes before them, and goes on behind them.
func (p modelPlan) loose() bool {
	if p.consumers == 1 && !p.beginsAnew() {
		return false
	}
	if p.async {
		return true // verdicts come in any order, and what has none is delivered again by itself
	}
	if p.consumer.Order == messaging.OrderKey && p.batched() && !p.consumer.AckBatchIndex {
		return true
	}
	if p.consumers == 1 && p.restart == 0 && p.consumer.Type != messaging.KeyShared {
		return false
	}
	return slices.ContainsFunc(p.faults, func(f faultPlan) bool {
		switch f.kind {
		case faultCut, faultCutOne, faultLoseAcks, faultRefuse, faultLoseEntries, faultCloseConsumers, faultEndSessions, faultTakeover,
			faultChangeActive:
			return true
		default:
			return false
		}
	})
}

// beginsAnew reports whether a consumer's session may end before the consumer does, or the consumer
// begins again.
func (p modelPlan) beginsAnew() bool { return p.sessionEnds() > 0 }

// sessionEnds is how often that may be. A connection that breaks while the client underneath
// connects again can make it drop messages, and then the session ends.
func (p modelPlan) sessionEnds() int {
	n := 0
	if p.restart > 0 {
		n++
	}
	for _, f := range p.faults {
		switch f.kind {
		case faultEndSessions, faultCut, faultCutOne, faultRefuse, faultLoseAcks, faultCloseConsumers, faultLoseEntries:
			n++
		default:
		}
	}
	return n
}

// keepsAttempts reports whether a message that fails comes again with the next attempt, whatever
// breaks. With a Failover subscription and without order a reconnect delivers a message again while
// it is still handled: that one begins before the failure is known.
func (p modelPlan) keepsAttempts() bool {
	inPlace := p.consumer.Type != messaging.Shared || p.consumer.Retry.InPlace
	sideBySide := p.consumer.Type == messaging.Failover && p.consumer.Order == messaging.OrderNone
	return inPlace && !sideBySide && !p.async && p.consumers == 1 && p.restart == 0 // a late verdict may be void
}

// hangsAlone reports whether what hangs leaves room and workers for all that is not ordered behind
// it.
func (p modelPlan) hangsAlone() bool {
	c := p.consumer
	return p.handlers.hang > 0 && p.handlers.hang <= 10 && p.consumers == 1 && p.restart == 0 && !p.exclusive &&
		c.Order != messaging.OrderTotal && c.Concurrency == 16 && c.PrefetchMessages == 1000 && c.PrefetchBytes == 64<<20
}

func (p modelPlan) batched() bool {
	for _, s := range p.publishers {
		if s.profile.BatchRecords > 1 {
			return true
		}
	}
	return false
}

func millis(r *rand.Rand, most int) time.Duration {
	return time.Duration(r.IntN(most+1)) * time.Millisecond
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func newModelPlan(seed uint64) modelPlan {
	r := rand.New(rand.NewPCG(seed, 9))
	p := modelPlan{seed: seed, partitions: pick(r, 0, 0, 1, 2, 3), keys: pick(r, 1, 2, 3, 7), padding: pick(r, 0, 0, 100, 2000)}
	p.drawConsumer(r)
	p.drawPublishers(r)
	p.drawFaults(r)
	return p
}

func (p *modelPlan) drawConsumer(r *rand.Rand) {
	c := messaging.DefaultConsumerConfig()
	c.Subscription = "sub"
	c.Type = pick(r, allTypes...)
	switch c.Type {
	case messaging.Shared:
		c.Order = messaging.OrderNone
	case messaging.KeyShared:
		c.Order = messaging.OrderKey
	default:
		c.Order = pick(r, messaging.OrderKey, messaging.OrderKey, messaging.OrderPartition, messaging.OrderTotal, messaging.OrderNone)
	}
	c.Concurrency = pick(r, 1, 2, 4, 16)
	if c.Order == messaging.OrderTotal {
		c.Concurrency = 1
	}
	c.PrefetchMessages = pick(r, 2, 5, 20, 1000)
	c.PrefetchBytes = pick(r, int64(16<<10), 64<<10, 64<<20)
	c.MaxMessageBytes = 1 << 10
	c.AckEvery = time.Millisecond + millis(r, 10)
	c.AckMessages = pick(r, 1, 10, 1000)
	c.AckBatchIndex = r.IntN(4) == 0
	c.Retry.InPlace = r.IntN(2) == 0
	c.Retry.MinDelay, c.Retry.MaxDelay = time.Millisecond, 8*time.Millisecond
	c.Retry.MaxAttempts = pick(r, 0, 3)
	c.StopTimeout = 200 * time.Millisecond
	c.StuckAfter = 40 * time.Millisecond // Run returns with the next look at what is stuck
	p.async = r.IntN(3) == 0
	p.consumers = pick(r, 1, 1, 1, 2)
	p.handlers = handlerPlan{slow: pick(r, 0, 50, 300), hang: pick(r, 0, 10, 50), reject: pick(r, 0, 30)}
	// Of what is handed over and fails later, nothing behind it waits: only what never fails is in
	// order.
	if !p.async || c.Order == messaging.OrderNone {
		p.handlers.fail, p.handlers.later = pick(r, 0, 100), pick(r, 0, 50)
	}
	if r.IntN(6) == 0 && c.Order != messaging.OrderTotal {
		// Room enough for everything but what is ordered behind one that hangs.
		c.Concurrency, c.PrefetchMessages, c.PrefetchBytes, p.consumers, p.handlers.hang = 16, 1000, 64<<20, 1, 10
	} else if r.IntN(5) == 0 {
		p.restart = millis(r, 200) + 1
	}
	p.consumer = c
}

func (p *modelPlan) drawPublishers(r *rand.Rand) {
	p.exclusive = r.IntN(8) == 0
	names := []string{"p0", "p1"}[:pick(r, 1, 1, 2)]
	if p.exclusive {
		names = []string{"e0", "e1"}
	}
	raw := !p.exclusive && r.IntN(2) == 0
	if raw && r.IntN(2) == 0 {
		names = nil
	}
	for i, name := range names {
		s := publisherPlan{name: name, records: 10 + r.IntN(100), pause: millis(r, 4), earlyEnds: pick(r, 0, 0, 100)}
		s.profile = pick(r, messaging.Business(), messaging.Ops())
		s.profile.BatchRecords = pick(r, 1, 3, 1000)
		s.profile.Compression = pick(r, messaging.NoCompression, messaging.NoCompression, messaging.LZ4)
		s.profile.MaxPendingRecords = pick(r, 3, 20, 10_000)
		s.profile.Admission = pick(r, messaging.Block, messaging.FailFast)
		s.profile.Routing = pick(r, messaging.RouteKeyHash, messaging.RouteKeyHash, messaging.RouteRoundRobin)
		s.profile.AckTimeout = time.Second
		if p.exclusive {
			own(&s.profile)
			s.begin = time.Duration(i) * (10*time.Millisecond + millis(r, 100))
		}
		p.publishers = append(p.publishers, s)
	}
	if raw {
		s := publisherPlan{name: "raw", raw: true, records: 10 + r.IntN(200), pause: millis(r, 3)}
		s.profile.BatchRecords = pick(r, 1, 2, 10, 50)
		p.publishers = append(p.publishers, s)
	}
	if p.consumer.Type == messaging.KeyShared {
		for i := range p.publishers {
			p.publishers[i].profile.BatchRecords = 1
		}
	}
}

func (p *modelPlan) drawFaults(r *rand.Rand) {
	kinds := []faultKind{
		faultCut, faultCut, faultCutOne, faultLoseAcks, faultLoseAcks, faultLoseAcks, faultStall, faultRefuse, faultCloseConsumers,
		faultCloseConsumers, faultEndSessions, faultEndSessions, faultCloseProducers, faultLoseReceipts, faultLoseReceipts,
		faultLoseEntries, faultHoldEntries, faultHoldReceipts, faultSlow, faultSendError, faultTwice,
	}
	if p.consumer.Type == messaging.Failover && p.consumers > 1 {
		kinds = append(kinds, faultChangeActive, faultChangeActive, faultChangeActive, faultChangeActive)
	}
	if !p.exclusive || r.IntN(2) == 0 {
		kinds = append(kinds, faultFence)
	}
	for range r.IntN(6) {
		f := faultPlan{kind: pick(r, kinds...), after: millis(r, 60), last: millis(r, 30), n: 1 + r.IntN(4)}
		// A receipt that only the timeout of a second finds out about takes time: rarely.
		if f.kind == faultLoseReceipts && r.IntN(10) == 0 {
			f.n = 0
		}
		p.faults = append(p.faults, f)
	}
	if p.exclusive && r.IntN(2) == 0 {
		p.faults = append(p.faults, faultPlan{kind: faultTakeover, after: millis(r, 30), last: millis(r, 30)})
	}
}
