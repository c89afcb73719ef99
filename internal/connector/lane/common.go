package lane

import (
	"sync"
	"sync/atomic"
)

// amount is what lanes hold or may hold.
type amount struct{ messages, bytes int64 }

// common is what lanes borrow from beyond what is their own. A lane may borrow at most as
// much as it leaves free, so that there is always something left for the next. It is safe
// for concurrent use, with lanes' locks held, too.
type common struct {
	messages, bytes                 atomic.Int64 // there are
	borrowedMessages, borrowedBytes atomic.Int64

	some    atomic.Bool // there are waiting ones
	mu      sync.Mutex
	waiting map[*Lane]struct{}
}

func (c *common) resize(a amount) {
	c.messages.Store(a.messages)
	c.bytes.Store(a.bytes)
}

// allows reports whether a lane that has borrowed has may have borrowed wants.
func (c *common) allows(has, wants amount) bool {
	return within(wants.messages, c.messages.Load(), c.borrowedMessages.Load()-has.messages) &&
		within(wants.bytes, c.bytes.Load(), c.borrowedBytes.Load()-has.bytes)
}

func within(wants, there, others int64) bool {
	return wants <= 0 || 2*wants <= there-others
}

// change notes that a lane that had borrowed has has now borrowed.
func (c *common) change(has, now amount) {
	if has.messages != now.messages {
		c.borrowedMessages.Add(now.messages - has.messages)
	}
	if has.bytes != now.bytes {
		c.borrowedBytes.Add(now.bytes - has.bytes)
	}
}

// wait has l woken when a lane gives something back. The caller looks again afterwards.
func (c *common) wait(l *Lane) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting == nil {
		c.waiting = map[*Lane]struct{}{}
	}
	c.waiting[l] = struct{}{}
	c.some.Store(true)
}

// wake has those that wait look again.
func (c *common) wake() {
	if !c.some.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.some.Store(false)
	for l := range c.waiting {
		l.signal(l.room)
	}
	clear(c.waiting)
}

func (c *common) forget(l *Lane) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, l)
}

// has reports whether the lane has room for a message of size. l.mu is held.
func (l *Lane) has(size int64) bool {
	return l.window.len == 0 ||
		l.set.fits(size) && l.set.common.allows(l.borrowed, l.beyond(amount{int64(l.window.len) + 1, l.bytes + size}))
}

// hasRoom is has; a lane without room is woken when others give some back. l.mu is held.
func (l *Lane) hasRoom(size int64) bool {
	if l.has(size) {
		return true
	}
	l.set.common.wait(l)
	return l.has(size)
}

// beyond is what of held is more than the lane's own.
func (l *Lane) beyond(held amount) amount {
	return amount{max(held.messages-l.own.messages, 0), max(held.bytes-l.own.bytes, 0)}
}

// borrow notes what the lane has borrowed, after what it holds or what is its own has
// changed. l.mu is held.
func (l *Lane) borrow() {
	now := l.beyond(amount{int64(l.window.len), l.bytes})
	l.set.common.change(l.borrowed, now)
	l.borrowed = now
}

// setOwn says what the lane may hold whatever others do.
func (l *Lane) setOwn(own amount) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.own = own
	l.borrow()
	l.signal(l.room)
}
