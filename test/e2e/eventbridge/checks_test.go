package eventbridge

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/engine"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"

	cloudevent "github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// shown is how many of what is wrong is shown of each subscriber.
const shown = 8

// finish stops the senders, waits until all that was accepted is accounted for, and checks
// everything.
func (w *fixture) finish() {
	w.t.Helper()
	w.stop()
	w.alive()
	w.event("no more events: %s", w.ledger)
	w.awaitAll()
	w.event("all is accounted for")
	w.sendAfterFaults()
	accepted := w.ledger.accepted()
	require.NotEmpty(w.t, accepted)
	for _, s := range w.subs {
		w.check(s, accepted)
	}
	w.t.Logf("%s", w.ledger)
}

// missing are events that neither came nor are dead letters as they should.
func (s *subscriber) missing(accepted []event) (ids []string) {
	for _, e := range accepted {
		if e.bus != s.bus || s.expects(e) != always {
			continue
		}
		if n, refused := s.book.counted(e.id); n == 0 && !refused {
			ids = append(ids, e.id)
		}
	}
	return ids
}

// awaitAll waits until each subscriber has got everything. The time begins anew with all progress.
func (w *fixture) awaitAll(but ...*subscriber) {
	w.t.Helper()
	accepted := w.ledger.accepted()
	progress, last := time.Now(), -1
	for {
		missing, total := "", 0
		var waiting []*subscriber
		for _, s := range w.subs {
			if slices.Contains(but, s) {
				continue
			}
			total += s.book.distinct()
			if ids := s.missing(accepted); len(ids) > 0 {
				missing += fmt.Sprintf("\n%s: %d are missing, such as %v", s.name, len(ids), w.told(ids))
				waiting = append(waiting, s)
			}
		}
		if missing == "" {
			return
		}
		if total != last {
			progress, last = time.Now(), total
		}
		if time.Since(progress) > waitTimeout {
			w.explain(waiting)
			w.t.Fatalf("nothing moves any more:%s", missing)
		}
		time.Sleep(50 * time.Millisecond) // polling a condition
	}
}

// explain logs what the processors and the broker say of subscribers that wait for events.
func (w *fixture) explain(subs []*subscriber) {
	for _, s := range subs {
		_, answer := w.call(http.MethodGet, s.path()+"/status", nil)
		w.t.Logf("the status of %s: %s", s.name, answer)
		topic := strings.Replace(w.topics.Send(&s.stored), "://", "/", 1)
		var stats json.RawMessage
		err := w.server.Admin(w.t.Context(), http.MethodGet, "/admin/v2/"+topic+"/partitioned-stats?perPartition=true", nil, &stats)
		w.t.Logf("%s: %s %v", topic, stats, err)
	}
}

// told are the first of some events, with when they were sent.
func (w *fixture) told(ids []string) (out []string) {
	for _, id := range ids[:min(len(ids), shown)] {
		out = append(out, fmt.Sprint(id, " ", w.ledger.postsOf(id)))
	}
	return out
}

// sendAfterFaults sends some events when the faults are over. Each comes once, to each subscriber that
// does not fail.
func (w *fixture) sendAfterFaults() {
	w.t.Helper()
	from := len(w.ledger.accepted())
	s := w.sender(sendersOfMany + 1)
	one := w.sender(sendersOfMany + 2)
	one.bus = busOne
	for range 20 {
		require.True(w.t, s.once() && one.once())
	}
	w.awaitAll()
	w.event("what came afterwards is accounted for")
	for _, s := range w.subs {
		for _, e := range w.ledger.accepted()[from:] {
			if n, _ := s.book.counted(e.id); e.bus == s.bus && s.expects(e) == always {
				assert.LessOrEqual(w.t, n, 1, "%s: %s came %d times although nothing failed", s.name, e.id, n)
			}
		}
	}
}

// check looks at all that one subscriber got, at its dead letters and, where it is ordered, at its
// send topic.
func (w *fixture) check(s *subscriber, accepted []event) {
	w.t.Helper()
	known := map[string]event{}
	for _, e := range accepted {
		if e.bus == s.bus {
			known[e.id] = e
		}
	}
	b := s.book
	b.mu.Lock()
	defer b.mu.Unlock()
	assert.Empty(w.t, b.wrong[:min(len(b.wrong), shown)], s.name)
	for id := range b.attempts {
		e, ok := known[id]
		assert.True(w.t, ok && s.expects(e) != never, "%s: %s came, and should not: %+v", s.name, id, e)
	}
	letters := w.letters(s)
	for id := range b.refused {
		assert.Positive(w.t, letters[id], "%s: %s was refused, and is no dead letter", s.name, id)
	}
	for id := range letters {
		assert.True(w.t, b.refused[id], "%s: %s is a dead letter, and was not refused", s.name, id)
	}
	copies := 0
	for _, n := range b.count {
		copies += n - 1
	}
	if s.order.Ordered() {
		w.ordered(s, w.sendTopic(s))
	}
	w.t.Logf("%s: %d events, %d copies more, %d dead letters, %d attempts that failed", s.name, len(b.count), copies, len(letters), b.failed)
}

// letters are the dead letters of a subscriber, and how often each is there.
func (w *fixture) letters(s *subscriber) map[string]int {
	w.t.Helper()
	found := map[string]int{}
	// A letter is stored before its event is acknowledged, but after it was refused.
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(200 * time.Millisecond) { // polling a condition
		clear(found)
		w.read(w.topics.DeadLetter(&s.stored), func(d *messaging.Delivery) { found[w.idOf(d)]++ })
		if len(found) >= len(s.book.refused) || time.Now().After(deadline) {
			return found
		}
	}
}

func (w *fixture) idOf(d *messaging.Delivery) string {
	w.t.Helper()
	e, err := cloudevent.Decode(d.Payload)
	require.NoError(w.t, err)
	return e.ID
}

// sendTopic checks that an ordered subscriber's send topic has each event once, under positions
// that ascend, and returns where each stands.
func (w *fixture) sendTopic(s *subscriber) map[string]int {
	w.t.Helper()
	place, wrong, n := map[string]int{}, []string{}, 0
	copies, positions := map[string][]string{}, map[int]int64{}
	w.read(w.topics.Send(&s.stored), func(d *messaging.Delivery) {
		id := w.idOf(d)
		position, err := strconv.ParseInt(d.Properties[engine.PropertyPosition], 10, 64)
		require.NoError(w.t, err)
		if position <= positions[d.Partition] {
			wrong = append(wrong, fmt.Sprintf("%s at %d stands behind position %d", id, position, positions[d.Partition]))
		}
		positions[d.Partition] = position
		copies[id] = append(copies[id], fmt.Sprintf("%v at %d, published %s", d.ID, position, d.PublishTime.Format("15:04:05.000")))
		if _, again := place[id]; again {
			wrong = append(wrong, fmt.Sprintf("%s stands there again, sent %v: %s", id, w.ledger.postsOf(id), strings.Join(copies[id], "; ")))
		} else {
			place[id] = n
			n++
		}
	})
	assert.Empty(w.t, wrong[:min(len(wrong), shown)], "%s: the send topic, of %d events; %d are wrong", s.name, n, len(wrong))
	return place
}

// ordered checks what came to an ordered subscriber: the first and the last sightings of the events
// of each group ascend, so that the last state is the newest; of the order total those of all
// events, by their places in the send topic.
func (w *fixture) ordered(s *subscriber, place map[string]int) {
	w.t.Helper()
	for _, which := range []string{"first", "last"} {
		seen := slices.Clone(s.book.taken)
		if which == "last" {
			slices.Reverse(seen)
		}
		seen = distinct(seen)
		if which == "last" {
			slices.Reverse(seen)
		}
		previous := map[string]string{}
		var wrong []string
		for _, id := range seen {
			group, n := w.place(s, id, place)
			if before, ok := previous[group]; ok {
				if _, m := w.place(s, before, place); m > n {
					wrong = append(wrong, fmt.Sprintf("%s after %s", id, before))
				}
			}
			previous[group] = id
		}
		assert.Empty(w.t, wrong[:min(len(wrong), shown)], "%s: the %s sightings of events, %d are out of order", s.name, which, len(wrong))
	}
}

// place is what an event has an order in, and where it stands there.
func (w *fixture) place(s *subscriber, id string, place map[string]int) (group string, n int) {
	w.t.Helper()
	if s.order == model.OrderTotal {
		return "", place[id]
	}
	group, number, _ := strings.Cut(id, "-")
	n, err := strconv.Atoi(number)
	require.NoError(w.t, err)
	return group, n
}

// distinct are the first ones of each.
func distinct(ids []string) (out []string) {
	seen := map[string]bool{}
	for _, id := range ids {
		if !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	return out
}
