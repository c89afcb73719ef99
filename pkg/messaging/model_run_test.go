//go:build !race

package messaging_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/history"
)

const (
	// modelTimeout is how long nothing at all may happen before what is left counts as pinned.
	modelTimeout = await.Patience
	// modelLimit is how long a seed may take altogether.
	modelLimit = 4 * await.Patience
)

// modelServer is what a seed runs against.
type modelServer interface {
	// config reaches the server as the client of that name.
	config(identity string) messaging.Config
	topic() string
	// publish stores records as one entry.
	publish(partition int, batch []modelRecord)
	// strike makes a fault, waits for as long as it lasts, and ends it.
	strike(m *modelRun, f faultPlan)
	// heal ends all faults.
	heal()
	// subscribed waits until consumers are connected.
	subscribed(ctx context.Context) error
	// backlog is what is not acknowledged on the topic and the retry topic.
	backlog() int
	// until waits for a condition that changes with the server's state.
	until(ctx context.Context, cond func() bool) error
	// log is what the topic holds, deadLetters the payloads on the dead-letter topic.
	log() ([]modelMessage, error)
	deadLetters() (map[string]bool, error)
	// clock and lapsed tell whether the message was sent to another client before the handler ended.
	clock() int
	lapsed(c *call) bool
	// moved reports whether more than one client was sent the message.
	moved(l modelMessage) bool
	// connected lists the consumers as the server sees them.
	connected() []string
	// trace is what the server knows of how it went.
	trace() []string
	close() error
}

// modelRecord is one record with the name by which it is known.
type modelRecord struct {
	key, ordering, payload string
}

// modelMessage is one message of the topic.
type modelMessage struct {
	modelRecord
	id        string // as MessageID.String
	partition string
}

// modelRun is one seed under way.
type modelRun struct {
	plan   modelPlan
	server modelServer
	began  time.Time

	mu      sync.Mutex
	moment  int // of the history
	calls   []*call
	records []*history.Record
	events  []string
	broken  []history.Violation
	release chan struct{} // closed when what hangs may go on
	opened  map[string]chan struct{}
	fences  int

	consumers []*modelConsumer
}

// nextFence makes the record that a fence stores on every partition. Each fence is a publisher of
// its own: publishers may own the topic between two of them.
func (m *modelRun) nextFence() (stream string) {
	m.mu.Lock()
	stream = fmt.Sprintf("fence%d", m.fences)
	m.fences++
	m.mu.Unlock()
	m.fate(m.addRecord(stream, 0), history.Stored, nil)
	return stream
}

// call is one call of a handler.
type call struct {
	history.Delivery
	identity string
	topic    string
	key      string
	began    int // the server's clock when the handler was called
	ended    int // and when it ended
	payload  string
}

func runModel(p modelPlan, newServer func(modelPlan) (modelServer, error)) modelOutcome {
	m := &modelRun{plan: p, began: time.Now(), release: make(chan struct{}), opened: make(map[string]chan struct{})}
	for _, s := range p.publishers {
		m.opened[s.name] = make(chan struct{})
	}
	server, err := newServer(p)
	if err != nil {
		m.violate(history.Unknown, "cannot start: %v", err)
	} else {
		m.server = server
		m.drive()
		if err := server.close(); err != nil {
			m.violate(history.Unknown, "close server: %v", err)
		}
	}
	return modelOutcome{plan: p, violations: m.broken, events: m.events, took: time.Since(m.began)}
}

func (m *modelRun) violate(k history.Kind, format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = append(m.broken, history.Violation{Kind: k, Text: fmt.Sprintf(format, args...)})
}

// note writes a line of the trace. The caller holds the lock.
func (m *modelRun) note(format string, args ...any) {
	m.events = append(m.events, fmt.Sprintf("%4d %8.1fms ", m.moment, float64(time.Since(m.began).Microseconds())/1000)+
		fmt.Sprintf(format, args...))
}

func (m *modelRun) noteNow(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note(format, args...)
}

// drive runs the plan: everything at once, then quiet, then the end.
func (m *modelRun) drive() {
	ctx, cancel := context.WithTimeout(context.Background(), modelLimit)
	defer cancel()
	stopConsumers := m.startConsumers()
	if err := m.server.subscribed(ctx); err != nil {
		m.violate(history.Pinned, "no consumer subscribed: %v", err)
	}
	var publishing, breaking sync.WaitGroup
	for _, s := range m.plan.publishers {
		publishing.Go(func() { m.publish(s) })
	}
	breaking.Go(func() {
		for _, f := range m.plan.faults {
			time.Sleep(f.after)
			m.noteNow("FAULT %s for %s", f.kind, f.last)
			m.server.strike(m, f)
			m.noteNow("  over: %s", f.kind)
		}
	})
	breaking.Wait()
	m.server.heal()
	if m.plan.hangsAlone() {
		publishing.Wait()
		m.awaitOthers(ctx)
	}
	close(m.release)
	publishing.Wait()
	m.noteNow("published")
	m.awaitQuiet(ctx)
	backlog := m.server.backlog()
	m.noteNow("backlog %d", backlog)
	if backlog > 0 {
		m.tellPinned()
	}
	stopConsumers()
	m.check(backlog)
}

// awaitOthers waits until all is handled that need not wait for what hangs.
func (m *modelRun) awaitOthers(ctx context.Context) {
	log, err := m.server.log()
	if err != nil {
		return // check will say so
	}
	blocked := make(map[string]bool)            // groups
	hanging := make(map[string]map[string]bool) // partitions by key
	for _, l := range log {
		if g := m.group(l); g != "" && m.hangs(l.payload) {
			if hanging[keyOf(g)] == nil {
				hanging[keyOf(g)] = make(map[string]bool)
			}
			hanging[keyOf(g)][l.partition] = true
		}
	}
	var others []modelMessage
	for _, l := range log {
		g := m.group(l)
		where := hanging[keyOf(g)]
		switch {
		case m.plan.async:
			if !m.hangs(l.payload) { // what hangs is handed over all the same, and may fail in the end
				others = append(others, l)
			}
		case m.hangs(l.payload):
			blocked[g] = g != ""
		case blocked[g]:
		case len(where) > 1 || len(where) == 1 && !where[l.partition]:
			// A key that is in several partitions, as other publishers may have it, is one queue.
		default:
			others = append(others, l)
		}
	}
	missing := func() (left []modelMessage) {
		m.mu.Lock()
		defer m.mu.Unlock()
		handled := make(map[string]bool)
		for _, c := range m.calls {
			if c.Result == history.Done || c.Result == history.Dead {
				handled[c.ID] = true
			}
		}
		for _, l := range others {
			if !handled[l.id] {
				left = append(left, l)
			}
		}
		return left
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(modelTimeout)
	for {
		left := missing()
		if len(left) == 0 {
			return
		}
		select {
		case <-tick.C:
			continue
		case <-limit:
		case <-ctx.Done():
		}
		stream, n := parseName(left[0].payload)
		m.violate(history.Blocked, "%d messages wait for others that hang, %s-%d (%s) first", len(left), stream, n, left[0].id)
		return
	}
}

// keyOf is the key of a group.
func keyOf(group string) string {
	key, _, _ := strings.Cut(group, " of partition ")
	return key
}

// awaitQuiet waits until the backlog is 0, and gives up when nothing happens any more.
func (m *modelRun) awaitQuiet(ctx context.Context) {
	for ctx.Err() == nil {
		before := m.now()
		some, cancel := context.WithTimeout(ctx, modelTimeout)
		// Whatever is tried again and again counts as nothing once the limit of the seed is
		// reached.
		_ = m.server.until(some, func() bool { return m.server.backlog() == 0 })
		cancel()
		if m.server.backlog() == 0 || m.now() == before {
			return
		}
	}
}

// tellPinned adds to the trace what the consumers and the server hold.
func (m *modelRun) tellPinned() {
	for _, c := range m.consumers {
		families, err := c.registry.Gather()
		if err != nil {
			m.noteNow("%s: %v", c.identity, err)
		}
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), "aviary_messaging_") {
				continue
			}
			for _, v := range f.GetMetric() {
				if n := v.GetGauge().GetValue() + v.GetCounter().GetValue(); n != 0 {
					m.noteNow("%s: %s %v %g", c.identity, f.GetName(), v.GetLabel(), n)
				}
			}
		}
	}
	for _, line := range m.server.connected() {
		m.noteNow("%s", line)
	}
}

func (m *modelRun) now() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.moment
}

// check compares what happened with what is stored.
func (m *modelRun) check(backlog int) {
	log, err := m.server.log()
	if err != nil {
		m.violate(history.Unknown, "read the log: %v", err)
		return
	}
	dead, err := m.server.deadLetters()
	if err != nil {
		m.violate(history.Unknown, "read the dead letters: %v", err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	consumed := history.Consumed{
		Backlog: backlog, DeadLetters: make(map[string]bool), Loose: make(map[string]bool),
		Attempts: m.plan.keepsAttempts(),
		Ordered:  m.plan.consumer.Order != messaging.OrderNone,
		// Several consumers may have a partition each.
		OneAtATime: m.plan.consumer.Order == messaging.OrderTotal && m.plan.consumers == 1,
	}
	var published history.Published
	published.Exclusive = m.plan.exclusive
	for _, l := range log {
		consumed.Log = append(consumed.Log, history.Message{ID: l.id, Group: m.group(l)})
		if m.plan.loose() && (m.plan.beginsAnew() || m.server.moved(l)) {
			consumed.Loose[m.group(l)] = true
		}
		if dead[l.payload] {
			consumed.DeadLetters[l.id] = true
		}
		stream, n := parseName(l.payload)
		published.Log = append(published.Log, history.Entry{Stream: stream, N: n, Partition: l.partition})
	}
	for _, c := range m.calls {
		c.Lapsed = m.server.lapsed(c)
		consumed.Deliveries = append(consumed.Deliveries, c.Delivery)
	}
	for _, r := range m.records {
		published.Records = append(published.Records, *r)
	}
	m.broken = append(m.broken, published.Check()...)
	m.broken = append(m.broken, consumed.Check()...)
	if len(m.broken) > 0 {
		m.tell(log)
		m.events = append(m.events, m.server.trace()...)
	}
}

// tell adds to the trace what is stored, and in what order it was handled.
func (m *modelRun) tell(log []modelMessage) {
	stored := make(map[string][]string)
	for _, l := range log {
		stream, n := parseName(l.payload)
		stored[l.partition] = append(stored[l.partition], fmt.Sprintf("%s-%d(%s)", stream, n, l.id))
	}
	for partition, list := range stored {
		m.events = append(m.events, "partition "+partition+" holds "+strings.Join(list, " "))
	}
	handled := make(map[string][]string)
	group := make(map[string]string)
	for _, l := range log {
		group[l.id] = m.group(l)
	}
	calls := slices.Clone(m.calls)
	slices.SortFunc(calls, func(a, b *call) int { return a.End - b.End })
	for _, c := range calls {
		mark := map[history.Result]string{history.Unfinished: "?", history.Failed: "!", history.Dead: "x"}[c.Result]
		if c.Lapsed {
			mark += "L"
		}
		stream, n := parseName(c.payload)
		handled[group[c.ID]] = append(handled[group[c.ID]], fmt.Sprintf("%s-%d/%s%s", stream, n, c.identity, mark))
	}
	for g, list := range handled {
		m.events = append(m.events, "group "+g+" was handled "+strings.Join(list, " "))
	}
}

// group is what a message is ordered in.
func (m *modelRun) group(l modelMessage) string {
	switch m.plan.consumer.Order {
	case messaging.OrderPartition, messaging.OrderTotal:
		return "partition " + l.partition
	case messaging.OrderKey:
		key := l.ordering
		if key == "" {
			key = l.key
		}
		if key == "" {
			return ""
		}
		return key + " of partition " + l.partition
	default:
		return ""
	}
}

// newRecord makes record n of a stream. Its payload is its name, and padding.
func (m *modelRun) newRecord(stream string, n int) modelRecord {
	h := m.chance(stream, n, "record")
	r := modelRecord{payload: stream + "|" + strconv.Itoa(n) + "|"}
	if m.plan.padding > 0 {
		r.payload += strings.Repeat("x", h%m.plan.padding)
	}
	switch key := "k" + strconv.Itoa(h/7%m.plan.keys); {
	case h%20 == 0: // no key
	case h%20 == 1:
		r.key, r.ordering = "other", key
	default:
		r.key = key
	}
	return r
}

// parseName is the stream and the number that a payload begins with.
func parseName(payload string) (stream string, n int) {
	parts := strings.SplitN(payload, "|", 3)
	if len(parts) < 3 {
		return payload, -1
	}
	n, err := strconv.Atoi(parts[1])
	if err != nil {
		return payload, -1
	}
	return parts[0], n
}

// chance is a number that the seed decides for each of its arguments.
func (m *modelRun) chance(of ...any) int {
	h := fnv.New64a()
	_, _ = fmt.Fprintln(h, append(of, m.plan.seed)...)
	return int(h.Sum64() >> 34)
}

// addRecord notes that a record is about to be published.
func (m *modelRun) addRecord(stream string, n int) *history.Record {
	r := &history.Record{Stream: stream, N: n}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records = append(m.records, r)
	return r
}

// fate notes what the publisher said of a record.
func (m *modelRun) fate(r *history.Record, f history.Fate, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.Fate, r.Outcomes = f, r.Outcomes+1
	m.moment++
	if err != nil {
		m.note("%s-%d: %v", r.Stream, r.N, err)
	}
}
