package proxy

import "errors"

// place is what a connection leads to.
type place struct {
	address string
	server  string   // the run_id of the Redis
	told    *primary // what was known of the primary before the connect
}

// primary is the Redis that connections may lead to. Empty: not known, any.
type primary struct{ address, server string }

// errMoved is why a connection ends whose Redis is the primary no more.
var errMoved = errors.New("another Redis is the primary now")

// Moved tells which Redis is the primary now: its address, its run_id, or both; empty is not known. Connections to another one end, as if they had
// been lost. It is safe for concurrent use.
func (p *Proxy) Moved(address, server string) {
	p.mu.Lock()
	now := &primary{address, server}
	if before := p.primary.Load(); before != nil && address == "" {
		now.address = before.address
	}
	p.primary.Store(now)
	p.mu.Unlock()
	p.leave(errMoved, now.other)
}

// Demoted tells that the Redis with that run_id has become a replica. Connections to it end, as if they had been lost: replies to writes would tell, but
// who only reads would go on reading what may be old. It is safe for concurrent use.
func (p *Proxy) Demoted(server string) {
	p.leave(errReplica, func(to place) bool { return to.server == server })
}

// leave ends the connections that lead to where from says.
func (p *Proxy) leave(why error, from func(place) bool) {
	for _, l := range p.running() {
		l.post(func() {
			for b := range l.backends() {
				if b.state == up && from(b.place) {
					b.lost(why)
				}
			}
		})
	}
}

// other reports whether a connection leads elsewhere.
func (m *primary) other(to place) bool {
	return m.address != "" && m.address != to.address || m.server != "" && m.server != to.server
}

// outdated reports whether a connection leads elsewhere than was told, the server's address at any time, its run_id since the connect began: one that
// was told before may be that of a process that has ended since.
func (p *Proxy) outdated(to place) bool {
	now := p.primary.Load()
	if now == nil {
		return false
	}
	if now == to.told {
		return (&primary{address: now.address}).other(to)
	}
	return now.other(to)
}

// backends are all connections of the loop to Redis.
func (l *loop) backends() map[*backend]struct{} {
	all := make(map[*backend]struct{}, len(l.shared)+len(l.own)+len(l.watchers))
	for _, b := range l.shared {
		all[b] = struct{}{}
	}
	for b := range l.own {
		all[b] = struct{}{}
	}
	for _, w := range l.watchers {
		all[w.b] = struct{}{}
	}
	return all
}
