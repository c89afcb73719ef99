package publish

import "github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"

// flushAll sends the unacknowledged records now.
func (pp *partitionPublisher) flushAll() {
	pp.mu.Lock()
	empty := pp.list.Head() == nil
	pp.mu.Unlock()
	if !empty && !pp.p.profile.unbatched() {
		pp.p.flusher.Hurry(&pp.flush)
	}
}

// requestFlush has records sent soon that the producer got before the call.
func (pp *partitionPublisher) requestFlush() {
	if !pp.p.profile.unbatched() {
		pp.p.flusher.Request(&pp.flush)
	}
}

// gathers reports whether a record that enters now stays in the list until the next flush. With
// many partitions, each record would wake a producer's goroutine for itself alone. With few,
// callers and producers work side by side. pp.mu is held.
func (pp *partitionPublisher) gathers() bool {
	if pp.unsent != nil || pp.handing {
		return true // order
	}
	return !pp.p.profile.unbatched() && pp.p.flusher.Gathers()
}

// fullBatch reports whether what gathers fills an entry.
func (pp *partitionPublisher) fullBatch() bool {
	return pp.unsentCount >= pp.p.profile.BatchRecords || pp.unsentBytes >= pp.p.profile.BatchBytes
}

// flushNow sends the records gathered in the producer and returns when they are acknowledged or the
// producer is retired.
func (pp *partitionPublisher) flushNow() {
	pp.mu.Lock()
	raw, generation := pp.producer, pp.generation
	if raw == nil || pp.handing { // whoever is handing over flushes behind this, too
		pp.mu.Unlock()
		return
	}
	pp.sends.Add(1)
	defer pp.sends.Done()
	pp.handing = true
	for pp.unsent != nil && pp.producer == raw {
		e := pp.unsent
		pp.unsent = pp.list.Next(e)
		pp.unsentCount--
		pp.unsentBytes -= int(e.size)
		e.sent = true
		pp.mu.Unlock()
		pp.send(raw, e)
		pp.mu.Lock()
	}
	pp.handing = false
	pp.mu.Unlock()
	clientquirks.Flush(generation, raw)
}
