// Package flush decides when the records that gather for a partition are sent. It imports list
// only.
package flush

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/list"
)

// Flusher decides when the records that gather for a partition are sent, in place of the client,
// whose producers look every millisecond, idle or not. Publishers of one client whose profiles
// agree share one.
//
// A partition's records are sent at once when nothing of the partition is in flight and fewer than
// partitionsAtOnce partitions (any number under group commit) have something in flight. Otherwise
// they are sent after an acknowledgement, the oldest first, when they fill an entry, or when they
// have gathered for the linger. Its methods may be called from any goroutine, and do not block.
type Flusher struct {
	cfg    Config
	active func() int // partitions that have published lately

	mu        sync.Mutex
	gathering list.List[Partition, *Partition] // oldest first
	inFlight  int                              // partitions with something in flight
	timer     *time.Timer
	armed     bool
}

// Partition is a Flusher's view of one partition.
type Partition struct {
	// Flush sends what has gathered and returns when that has its outcome. It is called on a
	// goroutine of its own. It must be set.
	Flush func()

	requested atomic.Bool // a flush has been requested and not begun

	// Flusher.mu guards what follows.
	links    list.Links[Partition]
	since    time.Time // when the records began to gather
	listed   bool      // in Flusher.gathering
	inFlight int       // flushes without an acknowledgement
}

// Links makes Partition an element of a list.
func (p *Partition) Links() *list.Links[Partition] { return &p.links }

const (
	// partitionsAtOnce have something in flight before others gather, without group commit: an
	// entry costs as much as dozens of records.
	partitionsAtOnce = 4
	// Beyond manyPartitions active ones the library gathers the records, not the producers, and
	// the linger grows with the number of partitions, so that entries per second do not.
	manyPartitions = 8
	// flushesAtOnce bounds the flushes of one partition behind a slow broker.
	flushesAtOnce = 8
	// minLinger is the shortest linger: below it, timers cost more than entries.
	minLinger = time.Millisecond
)

// Config is what a Flusher's publishers have in common.
type Config struct {
	// Linger is how long records gather at most with few active partitions, 1 ms at least.
	Linger time.Duration
	// GroupCommit says that what gathers behind an entry is sent when that is acknowledged.
	GroupCommit bool
}

// Flushers are a client's. The zero value is ready to use.
type Flushers struct {
	mu   sync.Mutex
	made map[Config]*Flusher
}

// Of returns the Flusher for publishers of one configuration. active is the number of partitions
// that have published lately.
func (fs *Flushers) Of(cfg Config, active func() int) *Flusher {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	cfg.Linger = max(cfg.Linger, minLinger)
	f := fs.made[cfg]
	if f == nil {
		f = &Flusher{cfg: cfg, active: active}
		f.timer = time.AfterFunc(time.Hour, f.lapse)
		f.timer.Stop()
		if fs.made == nil {
			fs.made = make(map[Config]*Flusher)
		}
		fs.made[cfg] = f
	}
	return f
}

// Gathers reports whether records are to stay in the library until the next flush. With few
// partitions they need not: the producers gather them.
func (f *Flusher) Gathers() bool { return f.active() > manyPartitions }

// Request has what was sent to the partition before the call flushed soon.
func (f *Flusher) Request(p *Partition) {
	if p.requested.Load() || !p.requested.CompareAndSwap(false, true) {
		return // whoever set it flushes after this
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.free(p) {
		f.begin(p)
		return
	}
	if p.listed {
		return
	}
	p.since, p.listed = time.Now(), true
	f.gathering.Push(p)
	if !f.armed {
		f.armed = true
		f.timer.Reset(f.delay())
	}
}

// Hurry begins a flush of p, which has a whole entry to send, unless many are under way.
func (f *Flusher) Hurry(p *Partition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.inFlight < flushesAtOnce {
		f.begin(p)
	}
}

// free reports whether a flush of p may begin before its linger is over.
func (f *Flusher) free(p *Partition) bool {
	return p.inFlight == 0 && (f.cfg.GroupCommit || f.inFlight < partitionsAtOnce)
}

// delay is how long records gather at most.
func (f *Flusher) delay() time.Duration {
	return f.cfg.Linger * time.Duration(max(f.active()/manyPartitions, 1))
}

// begin starts a flush of p. f.mu is held.
func (f *Flusher) begin(p *Partition) {
	f.take(p)
	go f.run(p)
}

// take notes that a flush of p is under way. f.mu is held.
func (f *Flusher) take(p *Partition) {
	f.unlist(p)
	if p.inFlight == 0 {
		f.inFlight++
	}
	p.inFlight++
	p.requested.Store(false) // before the flush: what is sent from now on asks again
}

// run flushes p, and then whatever the end of that makes free.
func (f *Flusher) run(p *Partition) {
	for p != nil {
		p.Flush()
		f.mu.Lock()
		p.inFlight--
		if p.inFlight == 0 {
			f.inFlight--
		}
		p = f.next(p)
		if p != nil {
			f.take(p)
		}
		f.mu.Unlock()
	}
}

// next returns what may be flushed now that a flush of done has ended, or nil.
func (f *Flusher) next(done *Partition) *Partition {
	if f.cfg.GroupCommit {
		if done.listed && f.free(done) {
			return done
		}
		return nil
	}
	if f.inFlight >= partitionsAtOnce {
		return nil
	}
	for p := f.gathering.Head(); p != nil; p = f.gathering.Next(p) {
		if f.free(p) {
			return p
		}
	}
	return nil
}

// lapse flushes what has gathered for the linger.
func (f *Flusher) lapse() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, delay := time.Now(), f.delay()
	for p := f.gathering.Head(); p != nil; p = f.gathering.Head() {
		if wait := delay - now.Sub(p.since); wait > 0 {
			f.timer.Reset(wait)
			return
		}
		if p.inFlight < flushesAtOnce {
			f.begin(p)
		} else { // not before another linger
			f.gathering.Remove(p)
			p.since = now
			f.gathering.Push(p)
		}
	}
	f.armed = false
}

// Forget takes p out: its partition is closed.
func (f *Flusher) Forget(p *Partition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unlist(p)
}

func (f *Flusher) unlist(p *Partition) {
	if p.listed {
		f.gathering.Remove(p)
		p.listed = false
	}
}
