package pipeline

import "sync"

// amount is a number of messages and of their bytes.
type amount struct{ messages, bytes int64 }

func (a amount) plus(b amount) amount { return amount{a.messages + b.messages, a.bytes + b.bytes} }

func (a amount) minus(b amount) amount { return amount{a.messages - b.messages, a.bytes - b.bytes} }

func (a amount) atMost(b amount) bool { return a.messages <= b.messages && a.bytes <= b.bytes }

// pool bounds what the pipelines of a route hold: see [Config].
type pool struct {
	mu       sync.Mutex // taken after Set.mu and Pipeline.mu
	bounds   amount     // of all pipelines together
	held     amount     // by all pipelines
	own      amount     // share of each pipeline
	lendable amount     // bounds without the shares of all pipelines
	borrowed amount     // what pipelines hold beyond their shares
	waiting  map[*Pipeline]struct{}
}

// all returns what all pipelines hold at this moment.
func (p *pool) all() amount {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// divide gives each pipeline its own share of bounds. A pipeline may hold more for a while.
func (p *pool) divide(bounds amount, pipelines map[*Pipeline]struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bounds, p.own, p.lendable, p.borrowed = bounds, bounds, amount{}, amount{}
	if n := int64(len(pipelines)); n > 1 {
		p.own = amount{max(bounds.messages/(2*n), 1), max(bounds.bytes/(2*n), 1)}
		p.lendable = amount{bounds.messages - n*p.own.messages, bounds.bytes - n*p.own.bytes}
	}
	for l := range pipelines {
		p.borrowed = p.borrowed.plus(p.excess(l.held))
		signal(l.wakeOffer)
	}
}

// take adds a message of size bytes to what l holds. Without room it returns false, and wakes Offer of
// l once there may be some. An empty pipeline may take any message. l.mu is held.
func (p *pool) take(l *Pipeline, size int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := amount{1, size}
	if l.held.messages > 0 && !(p.held.plus(one).atMost(p.bounds) && p.lends(l.held, l.held.plus(one))) {
		p.waiting[l] = struct{}{}
		return false
	}
	p.change(l, l.held.plus(one))
	return true
}

// release subtracts done from what l holds, and wakes the pipelines that wait for room. l.mu is held.
func (p *pool) release(l *Pipeline, done amount) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change(l, l.held.minus(done))
	for waiting := range p.waiting {
		signal(waiting.wakeOffer)
		delete(p.waiting, waiting)
	}
}

// change sets what l holds. p.mu is held.
func (p *pool) change(l *Pipeline, now amount) {
	p.held = p.held.plus(now).minus(l.held)
	p.borrowed = p.borrowed.plus(p.excess(now)).minus(p.excess(l.held))
	l.held = now
}

// lends reports whether a pipeline may hold after in place of before. p.mu is held.
func (p *pool) lends(before, after amount) bool {
	if after.atMost(p.own) {
		return true
	}
	wanted := p.excess(after)
	free := p.lendable.minus(p.borrowed).plus(p.excess(before))
	return (wanted.messages == 0 || 2*wanted.messages <= free.messages) && (wanted.bytes == 0 || 2*wanted.bytes <= free.bytes)
}

// excess returns how much of held is more than a pipeline's own share. p.mu is held.
func (p *pool) excess(held amount) amount {
	return amount{max(held.messages-p.own.messages, 0), max(held.bytes-p.own.bytes, 0)}
}
