package proxy

import (
	"errors"

	"github.com/aviaryhq/aviary/internal/sonic/proxy/dialer"
)

// errNewPrimary is why the proxy closes a connection to a Redis that is not the primary any more.
var errNewPrimary = errors.New("another Redis is the primary now")

// SetPrimary sets which Redis is the primary now: its address, its run_id, or both. An empty
// address keeps the previous one; an empty run_id means that it is unknown. Connections to another
// Redis end as if they were lost. It is safe for concurrent use.
func (p *Proxy) SetPrimary(address, server string) {
	p.disconnect(errNewPrimary, p.dialer.SetPrimary(address, server).Other)
}

// Demoted says that the Redis with that run_id has become a replica. Connections to it end as if
// they were lost. A write would get an error, but a client that only reads would go on reading data
// that may be old. It is safe for concurrent use.
func (p *Proxy) Demoted(server string) {
	p.disconnect(dialer.ErrReplica, func(to dialer.Server) bool { return to.RunID == server })
}

// disconnect ends the connections to servers for which from returns true.
func (p *Proxy) disconnect(why error, from func(dialer.Server) bool) {
	p.post(func(l *loop) {
		for b := range l.backends() {
			if b.state == up && from(b.server) {
				b.lost(why)
			}
		}
	})
}

// backends returns all connections of the loop to Redis.
func (l *loop) backends() map[*backend]struct{} {
	all := make(map[*backend]struct{}, len(l.shared)+len(l.dedicated)+len(l.watchers))
	for _, b := range l.shared {
		all[b] = struct{}{}
	}
	for b := range l.dedicated {
		all[b] = struct{}{}
	}
	for _, w := range l.watchers {
		all[w.b] = struct{}{}
	}
	return all
}
