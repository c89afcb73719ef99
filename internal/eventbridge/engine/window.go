package engine

import (
	"crypto/sha256"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// identity identifies an event: 128 bits of a hash of its tenant, source and id. Tenants choose
// their sources and ids themselves, so those of two tenants may be equal.
type identity [16]byte

// identityOf returns the identity of the event e, which message d has brought.
func identityOf(d *messaging.Delivery, e *event.Event) identity {
	var buffer [256]byte
	text := append(append(buffer[:0], d.Properties[model.PropertyTenant]...), 0)
	text = append(append(text, e.Source...), 0)
	sum := sha256.Sum256(append(text, e.ID...))
	return identity(sum[:len(identity{})])
}

// windowCapacity bounds what all windows of a process remember.
type windowCapacity struct {
	most int64
	used atomic.Int64
}

// window remembers the events of one partition by a hash of their tenant, source and id, for as
// long as the bus says. Only the goroutine that handles the partition uses it.
//
// An event is dropped if an event with the same tenant, source and id is before it in the
// partition, and not by more than the window, by the publish times of their messages. That event
// may have been dropped itself, or have matched no rule. It does not count if it could not
// be matched, and is a dead letter of the bus: the corrected event with its id must come.
//
// So the topic and the dead letters of the bus decide which events are dropped. The rules do not:
// they may have changed. An event that is delivered again, to this or another engine, gets the same
// verdict, with one exception: an event with a copy that brokers refused is a dead letter, too. It
// does not count after a takeover, so that a second copy may come.
//
// Events are judged in the order of the topic. Events that were read ahead (see [window.ahead])
// have their verdict from that reading, because a backlog may be longer than the window.
type window struct {
	length   time.Duration
	capacity *windowCapacity

	known   int64 // the last position that was read ahead, -1: none
	knownAt int64 // when that event was published, in milliseconds
	// left has, up to known, the positions of events that are dropped, each with the position of
	// the event that it repeats. refused has the positions of events that were refused after they
	// were read ahead: an event that repeats one of them is not dropped.
	left    map[int64]int64
	refused map[int64]struct{}

	by     map[identity]seenEvent
	order  []seenAt // from head on, in the order of arrival
	head   int
	newest int64 // publish time, milliseconds
}

// seenEvent is where an event was first seen, and when it was last seen.
type seenEvent struct {
	first int64 // position
	last  int64 // publish time, milliseconds
}

type seenAt struct {
	hash identity
	at   int64
}

func newWindow(length time.Duration, capacity *windowCapacity) *window {
	return &window{length: length, capacity: capacity, known: -1, by: make(map[identity]seenEvent)}
}

// ahead judges an event that is read before it is delivered, or that was acknowledged before.
// Events are read in the order of the topic. All verdicts are kept, even those on events before the
// first delivered one: a broker that has lost acknowledgements delivers these later.
func (w *window) ahead(hash identity, position int64, published time.Time) (forgotten int) {
	first, forgotten := w.seen(hash, position, published)
	w.passed(position, published)
	switch {
	case first == position:
	case !w.reserve():
		forgotten++
	default:
		if w.left == nil {
			w.left = make(map[int64]int64)
		}
		w.left[position] = first
	}
	return forgotten
}

// passed records that the events up to position were read ahead.
func (w *window) passed(position int64, published time.Time) {
	w.known, w.knownAt = position, published.UnixMilli()
}

// reserve takes capacity for one more position in left or refused, if there is any.
func (w *window) reserve() bool {
	if w.capacity.used.Add(1) > w.capacity.most {
		w.capacity.used.Add(-1)
		return false
	}
	return true
}

// judge reports whether a delivered event is dropped. forgotten is how many events were forgotten
// early, for lack of capacity.
func (w *window) judge(hash identity, position int64, published time.Time) (again bool, forgotten int) {
	if position <= w.known {
		first, repeats := w.left[position]
		if _, refused := w.refused[first]; !repeats || !refused {
			return repeats, 0
		}
		// The event that it repeats was refused: this may be the first that counts.
	}
	if len(w.left)+len(w.refused) > 0 && published.UnixMilli()-w.knownAt > w.length.Milliseconds() {
		w.forgetAhead() // events that were read ahead are not in flight any more
	}
	first, forgotten := w.seen(hash, position, published)
	return first != position, forgotten
}

// forgetAhead forgets the verdicts on events that were read ahead.
func (w *window) forgetAhead() {
	w.capacity.used.Add(-int64(len(w.left) + len(w.refused)))
	w.left, w.refused = nil, nil
}

// refuse forgets an event that has been judged and becomes a dead letter of the bus.
func (w *window) refuse(hash identity, position int64) {
	if s, ok := w.by[hash]; ok && s.first == position {
		delete(w.by, hash)
	}
	if _, noted := w.refused[position]; noted || position > w.known {
		return
	}
	if !w.reserve() {
		w.forgetAhead() // a second copy is better than none
		return
	}
	if w.refused == nil {
		w.refused = make(map[int64]struct{})
	}
	w.refused[position] = struct{}{}
}

// seen records an event. It returns the position of the event that it repeats, or its own if it
// repeats none.
func (w *window) seen(hash identity, position int64, published time.Time) (first int64, forgotten int) {
	if w.length <= 0 {
		return position, 0
	}
	at := published.UnixMilli()
	w.newest = max(w.newest, at)
	w.expire(w.newest - w.length.Milliseconds())
	s, ok := w.by[hash]
	switch {
	case !ok || at-s.last >= w.length.Milliseconds():
		s = seenEvent{first: position, last: at}
	case position < s.first:
		return position, 0 // a redelivery: an event with this identity came later, by more than the window
	default:
		s.last = max(s.last, at)
	}
	w.by[hash] = s
	w.order = append(w.order, seenAt{hash, s.last})
	if w.capacity.used.Add(1) > w.capacity.most {
		forgotten = w.forget()
	}
	return s.first, forgotten
}

// expire forgets events that were last seen at the given time or before.
func (w *window) expire(until int64) {
	for w.head < len(w.order) && w.order[w.head].at <= until {
		w.drop(until)
	}
}

// forget forgets the oldest event, even if it is within the window.
func (w *window) forget() int {
	if w.head == len(w.order) {
		return 0
	}
	first := w.order[w.head]
	w.drop(first.at)
	if _, kept := w.by[first.hash]; kept {
		return 0 // it was seen again since
	}
	return 1
}

// drop removes the oldest entry, and its event unless that was seen after until.
func (w *window) drop(until int64) {
	oldest := w.order[w.head]
	w.head++
	w.capacity.used.Add(-1)
	if s, ok := w.by[oldest.hash]; ok && s.last <= until {
		delete(w.by, oldest.hash)
	}
	if w.head > 1024 && w.head > len(w.order)/2 {
		w.order = w.order[:copy(w.order, w.order[w.head:])]
		w.head = 0
	}
}

// close frees the window's capacity.
func (w *window) close() {
	w.capacity.used.Add(-int64(len(w.order) - w.head))
	w.forgetAhead()
	w.order, w.head, w.by, w.known = nil, 0, make(map[identity]seenEvent), -1
}
