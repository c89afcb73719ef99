package proxy

import (
	"crypto/sha256"
	"slices"
)

// users are who may log in. They are not changed, but replaced.
type users struct {
	named map[string]*user
	first *user // of clients that have not logged in; nil when they must
}

func usersOf(list []User) *users {
	all := &users{named: make(map[string]*user, len(list))}
	for _, u := range list {
		all.named[u.Name] = &user{name: u.Name, password: sha256.Sum256([]byte(u.Password)), readOnly: u.ReadOnly, keys: u.Keys}
	}
	if len(list) == 0 {
		all.first = &user{name: "default", open: true}
		all.named["default"] = all.first
	}
	return all
}

// SetUsers changes who may log in. Clients of users that are no more are disconnected; those of others stay logged in, whatever became of their password, and
// may do from then on what their user may. It is as in Redis. It is safe for concurrent use.
func (p *Proxy) SetUsers(list []User) {
	now := usersOf(list)
	p.users.Store(now)
	for _, l := range p.running() {
		l.post(func() {
			for _, c := range l.clients {
				c.changeUser(now)
			}
		})
	}
}

func (c *client) changeUser(now *users) {
	switch {
	case c.user != nil && now.named[c.user.name] == nil:
		c.close()
	case c.user != nil:
		before := c.user
		c.user = now.named[before.name]
		if c.tx != nil && len(c.tx.commands) > 0 && (before.readOnly != c.user.readOnly || !slices.Equal(before.keys, c.user.keys)) {
			c.tx.spoilt = true // its commands were let in by what the user might do before
		}
	case now.first != nil: // nobody has to log in any more
		c.user = now.first
		c.l.timers.stop(c.login)
		c.login = nil
	}
}
