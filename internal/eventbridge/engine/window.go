package engine

import (
	"sync/atomic"
	"time"
)

// windowRoom bounds what all windows of a process remember.
type windowRoom struct {
	most int64
	used atomic.Int64
}

// window remembers the events of one partition by a hash of their source and id, for as long as the bus says. It
// belongs to the goroutine that handles the partition.
//
// An event is left out when another one with its source and id stands before it in the partition, and not longer
// before it than the window, by the publish times of their messages. That one may have been left out itself. So what
// is left out follows from the topic alone: an event that is delivered again, here or to another engine, is judged as
// before. To that end events are judged in the order of the topic, and those that were read ahead (see [window.ahead])
// have their verdict from that reading: a backlog may be longer than the window.
type window struct {
	length time.Duration
	room   *windowRoom

	known   int64              // the last position that was read ahead, -1: none
	knownAt int64              // when it was published, milliseconds
	left    map[int64]struct{} // positions up to known that are to be left out

	by     map[identity]sighting
	order  []sighted // from head on, by the order of arrival
	head   int
	newest int64 // publish time, milliseconds
}

// sighting is what is known of a source and id.
type sighting struct {
	first int64 // position
	last  int64 // publish time, milliseconds
}

type sighted struct {
	hash identity
	at   int64
}

func newWindow(length time.Duration, room *windowRoom) *window {
	return &window{length: length, room: room, known: -1, by: make(map[identity]sighting)}
}

// ahead judges an event that is read before it is delivered, or that was acknowledged before. Events are read in the
// order of the topic, and all verdicts are kept, also those on what stands before the first event that is delivered: a
// broker that has lost acknowledgements delivers it later.
func (w *window) ahead(hash identity, position int64, published time.Time) (forgotten int) {
	again, forgotten := w.seen(hash, position, published)
	w.known, w.knownAt = position, published.UnixMilli()
	if !again {
		return forgotten
	}
	if w.room.used.Add(1) > w.room.most {
		w.room.used.Add(-1)
		return forgotten + 1
	}
	if w.left == nil {
		w.left = make(map[int64]struct{})
	}
	w.left[position] = struct{}{}
	return forgotten
}

// judge reports whether an event that is delivered is to be left out. forgotten is how many events were forgotten early,
// for want of room.
func (w *window) judge(hash identity, position int64, published time.Time) (again bool, forgotten int) {
	if position <= w.known {
		_, again = w.left[position]
		return again, 0
	}
	if w.left != nil && published.UnixMilli()-w.knownAt > w.length.Milliseconds() {
		w.forgetAhead() // nothing of it is under way any more
	}
	return w.seen(hash, position, published)
}

// forgetAhead forgets the verdicts on what was read ahead.
func (w *window) forgetAhead() {
	w.room.used.Add(-int64(len(w.left)))
	w.left = nil
}

// seen notes an event, and reports whether it is to be left out.
func (w *window) seen(hash identity, position int64, published time.Time) (again bool, forgotten int) {
	if w.length <= 0 {
		return false, 0
	}
	at := published.UnixMilli()
	w.newest = max(w.newest, at)
	w.expire(w.newest - w.length.Milliseconds())
	s, ok := w.by[hash]
	switch {
	case !ok || at-s.last >= w.length.Milliseconds():
		s = sighting{first: position, last: at}
	case position < s.first:
		return false, 0 // it is delivered again, and others of its source and id came since, longer than the window behind it
	default:
		again = s.first < position
		s.last = max(s.last, at)
	}
	w.by[hash] = s
	w.order = append(w.order, sighted{hash, s.last})
	if w.room.used.Add(1) > w.room.most {
		forgotten = w.forget()
	}
	return again, forgotten
}

// expire forgets what was last seen at the given time or before.
func (w *window) expire(until int64) {
	for w.head < len(w.order) && w.order[w.head].at <= until {
		w.drop(until)
	}
}

// forget forgets the oldest event, however young it is.
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

// drop takes the oldest sighting out, and the event with it unless it was seen after until.
func (w *window) drop(until int64) {
	oldest := w.order[w.head]
	w.head++
	w.room.used.Add(-1)
	if s, ok := w.by[oldest.hash]; ok && s.last <= until {
		delete(w.by, oldest.hash)
	}
	if w.head > 1024 && w.head > len(w.order)/2 {
		w.order = w.order[:copy(w.order, w.order[w.head:])]
		w.head = 0
	}
}

// close gives the room back.
func (w *window) close() {
	w.room.used.Add(-int64(len(w.order) - w.head))
	w.forgetAhead()
	w.order, w.head, w.by, w.known = nil, 0, make(map[identity]sighting), -1
}
