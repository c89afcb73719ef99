package pipeline

import (
	"sync"
	"sync/atomic"
)

// amount is a number of messages and of their bytes.
type amount struct{ messages, bytes int64 }

// pool is what pipelines borrow from when they need more than their own share. A pipeline may borrow at
// most as much as it leaves free, so that the next pipeline can borrow, too. It is safe for concurrent
// use, also with the lock of a pipeline held.
type pool struct {
	messages, bytes                 atomic.Int64 // the pool's size
	borrowedMessages, borrowedBytes atomic.Int64

	hasWaiting atomic.Bool // waiting is not empty
	mu         sync.Mutex
	waiting    map[*Pipeline]struct{}
}

func (p *pool) resize(a amount) {
	p.messages.Store(a.messages)
	p.bytes.Store(a.bytes)
}

// allows reports whether a pipeline that has borrowed current may change that to wanted.
func (p *pool) allows(current, wanted amount) bool {
	return within(wanted.messages, p.messages.Load(), p.borrowedMessages.Load()-current.messages) &&
		within(wanted.bytes, p.bytes.Load(), p.borrowedBytes.Load()-current.bytes)
}

// within reports whether wanted is at most half of what the other pipelines leave of total.
func within(wanted, total, others int64) bool {
	return wanted <= 0 || 2*wanted <= total-others
}

// update changes what a pipeline has borrowed from before to after.
func (p *pool) update(before, after amount) {
	if before.messages != after.messages {
		p.borrowedMessages.Add(after.messages - before.messages)
	}
	if before.bytes != after.bytes {
		p.borrowedBytes.Add(after.bytes - before.bytes)
	}
}

// addWaiter registers l to be woken by wakeWaiters. The caller must check again afterwards: room
// may have become free before.
func (p *pool) addWaiter(l *Pipeline) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == nil {
		p.waiting = map[*Pipeline]struct{}{}
	}
	p.waiting[l] = struct{}{}
	p.hasWaiting.Store(true)
}

// wakeWaiters wakes the pipelines that wait for room, after a pipeline has given some back.
func (p *pool) wakeWaiters() {
	if !p.hasWaiting.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hasWaiting.Store(false)
	for l := range p.waiting {
		l.signal(l.wakeOffer)
	}
	clear(p.waiting)
}

func (p *pool) removeWaiter(l *Pipeline) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, l)
}

// hasRoom reports whether the pipeline may take a message of size bytes. An empty pipeline may take
// any. l.mu is held.
func (l *Pipeline) hasRoom(size int64) bool {
	return l.window.Len() == 0 ||
		l.set.fits(size) && l.set.pool.allows(l.borrowed, l.excess(amount{int64(l.window.Len()) + 1, l.bytes + size}))
}

// hasRoomOrWaits is hasRoom, and registers a pipeline without room to be woken when other pipelines
// give some back. l.mu is held.
func (l *Pipeline) hasRoomOrWaits(size int64) bool {
	if l.hasRoom(size) {
		return true
	}
	l.set.pool.addWaiter(l)
	return l.hasRoom(size)
}

// excess returns how much of held is more than the pipeline's own share.
func (l *Pipeline) excess(held amount) amount {
	return amount{max(held.messages-l.own.messages, 0), max(held.bytes-l.own.bytes, 0)}
}

// updateBorrowed updates what the pipeline has borrowed, after a change of what it holds or of its own
// share. l.mu is held.
func (l *Pipeline) updateBorrowed() {
	now := l.excess(amount{int64(l.window.Len()), l.bytes})
	l.set.pool.update(l.borrowed, now)
	l.borrowed = now
}

// setOwn sets the pipeline's own share: what it may hold whatever other pipelines hold.
func (l *Pipeline) setOwn(own amount) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.own = own
	l.updateBorrowed()
	l.signal(l.wakeOffer)
}
