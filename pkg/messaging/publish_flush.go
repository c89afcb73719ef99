package messaging

import (
	"context"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/list"
)

// flusher decides when the records that gather for a partition are sent, in place of the
// underlying client, whose producers look every millisecond for something to send, idle or not.
// Publishers of one client whose profiles agree share one, so that many topics cost what many
// partitions do.
//
// A partition's records are sent at once when nothing of the partition is under way and fewer
// than partitionsAtOnce partitions have something under way. Otherwise they gather, and are sent
// when an acknowledgement makes room, the oldest first, or when they fill an entry or have
// gathered for the linger. So entries grow with what is in flight, and a lone record does not
// wait. Under group commit the number of partitions with something under way has no bound.
type flusher struct {
	flushing
	active func() int // partitions that have published lately

	mu        sync.Mutex
	gathering list.List[partitionFlush, *partitionFlush] // oldest first
	underWay  int                                        // partitions with something under way
	timer     *time.Timer
	armed     bool
}

// partitionFlush is the flusher's view of one partition. flusher.mu guards it.
type partitionFlush struct {
	links    list.Links[partitionFlush]
	pp       *partitionPublisher
	since    time.Time // when the records began to gather
	listed   bool      // in flusher.gathering
	underWay int       // flushes without an acknowledgement
}

// Links makes partitionFlush an element of a list.
func (pf *partitionFlush) Links() *list.Links[partitionFlush] { return &pf.links }

const (
	// partitionsAtOnce is how many partitions have something under way before others gather,
	// without group commit: an entry costs as much as dozens of records.
	partitionsAtOnce = 4
	// manyPartitions is from how many active partitions on the library gathers the records in
	// place of the producers. The linger grows with the active partitions beyond this number,
	// so that entries per second do not.
	manyPartitions = 8
	// flushesAtOnce is how many flushes of one partition are under way at most: behind a slow
	// broker one follows the other at the linger's pace.
	flushesAtOnce = 8
	// minLinger is the shortest linger: below it, timers cost more than entries.
	minLinger = time.Millisecond
)

// flushers are a client's. The zero value is ready to use.
type flushers struct {
	mu   sync.Mutex
	made map[flushing]*flusher
}

// flushing is what a flusher's publishers have in common.
type flushing struct {
	linger      time.Duration
	groupCommit bool
}

// of returns the flusher for p's publishers.
func (fs *flushers) of(p Profile, active func() int) *flusher {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	key := flushing{max(p.Linger, minLinger), p.GroupCommit}
	f := fs.made[key]
	if f == nil {
		f = newFlusher(key, active)
		if fs.made == nil {
			fs.made = make(map[flushing]*flusher)
		}
		fs.made[key] = f
	}
	return f
}

func newFlusher(key flushing, active func() int) *flusher {
	f := &flusher{flushing: key, active: active}
	f.timer = time.AfterFunc(time.Hour, f.lapse)
	f.timer.Stop()
	return f
}

// flushAll makes what is not acknowledged leave now.
func (pp *partitionPublisher) flushAll() {
	pp.mu.Lock()
	empty := pp.list.Head() == nil
	pp.mu.Unlock()
	if !empty && !pp.p.profile.unbatched() {
		pp.p.flusher.hurry(&pp.flush)
	}
}

// requestFlush makes what was sent to the producer before the call leave it soon.
func (pp *partitionPublisher) requestFlush() {
	if pp.p.profile.unbatched() || pp.flushQueued.Load() || !pp.flushQueued.CompareAndSwap(false, true) {
		return // whoever set it flushes after this
	}
	pp.p.flusher.add(&pp.flush)
}

// gathers reports whether a record that enters now stays in the list until the next flush. Given
// to the producer at once, each record would wake the producer's goroutine, and with many
// partitions there is seldom a second one for it to take on. With few partitions there is, and
// callers and producers work side by side. pp.mu is held.
func (pp *partitionPublisher) gathers() bool {
	if pp.unsent != nil || pp.handing {
		return true // order
	}
	return !pp.p.profile.unbatched() && pp.p.flusher.active() > manyPartitions
}

// fullBatch reports whether what gathers fills an entry.
func (pp *partitionPublisher) fullBatch() bool {
	return pp.unsentCount >= pp.p.profile.BatchRecords || pp.unsentBytes >= pp.p.profile.BatchBytes
}

// add begins a flush, or has the records of pf gather.
func (f *flusher) add(pf *partitionFlush) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.free(pf) {
		f.begin(pf)
		return
	}
	if pf.listed {
		return
	}
	pf.since, pf.listed = time.Now(), true
	f.gathering.Push(pf)
	if !f.armed {
		f.armed = true
		f.timer.Reset(f.delay())
	}
}

// hurry begins a flush of pf, which has a whole entry to send, unless many are under way.
func (f *flusher) hurry(pf *partitionFlush) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if pf.underWay < flushesAtOnce {
		f.begin(pf)
	}
}

// free reports whether a flush of pf may begin before its linger is over.
func (f *flusher) free(pf *partitionFlush) bool {
	return pf.underWay == 0 && (f.groupCommit || f.underWay < partitionsAtOnce)
}

// delay is how long records gather at most.
func (f *flusher) delay() time.Duration {
	return f.linger * time.Duration(max(f.active()/manyPartitions, 1))
}

// begin starts a flush of pf. f.mu is held.
func (f *flusher) begin(pf *partitionFlush) {
	f.take(pf)
	go f.run(pf)
}

// take notes that a flush of pf is under way. f.mu is held.
func (f *flusher) take(pf *partitionFlush) {
	if pf.listed {
		f.gathering.Remove(pf)
		pf.listed = false
	}
	if pf.underWay == 0 {
		f.underWay++
	}
	pf.underWay++
	pf.pp.flushQueued.Store(false) // before the flush: what is sent from now on asks again
}

// run flushes pf, and then whatever the end of that makes free.
func (f *flusher) run(pf *partitionFlush) {
	for pf != nil {
		pf.pp.flushNow()
		f.mu.Lock()
		pf.underWay--
		if pf.underWay == 0 {
			f.underWay--
		}
		pf = f.next(pf)
		if pf != nil {
			f.take(pf)
		}
		f.mu.Unlock()
	}
}

// next returns what may be flushed now that a flush of done has ended, or nil.
func (f *flusher) next(done *partitionFlush) *partitionFlush {
	if f.groupCommit {
		if done.listed && f.free(done) {
			return done
		}
		return nil
	}
	if f.underWay >= partitionsAtOnce {
		return nil
	}
	for pf := f.gathering.Head(); pf != nil; pf = f.gathering.Next(pf) {
		if f.free(pf) {
			return pf
		}
	}
	return nil
}

// lapse flushes what has gathered for the linger.
func (f *flusher) lapse() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = false
	now, delay := time.Now(), f.delay()
	var next *partitionFlush
	for pf := f.gathering.Head(); pf != nil; pf = next {
		next = f.gathering.Next(pf)
		if wait := delay - now.Sub(pf.since); wait > 0 {
			f.armed = true
			f.timer.Reset(wait)
			return
		}
		if pf.underWay < flushesAtOnce {
			f.begin(pf)
		} else { // not before another linger
			f.gathering.Remove(pf)
			pf.since = now
			f.gathering.Push(pf)
			f.armed = true
		}
	}
	if f.armed {
		f.timer.Reset(delay)
	}
}

// forget takes pf out: its partition is closed.
func (f *flusher) forget(pf *partitionFlush) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if pf.listed {
		f.gathering.Remove(pf)
		pf.listed = false
	}
}

// flushNow sends what has gathered in the producer and returns when that is acknowledged or the
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
	flushOnce(generation, raw)
}

// flushOnce flushes raw. Its failures show in the records' own outcomes; flushing a producer
// that closes itself in the same moment panics, as send does.
func flushOnce(ctx context.Context, raw pulsar.Producer) {
	defer func() { _ = recover() }()
	_ = raw.FlushWithCtx(ctx)
}
