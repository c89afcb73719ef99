package proxy

import (
	"slices"

	"github.com/aviaryhq/aviary/internal/sonic/proxy/access"
)

// SetUsers replaces the users that may log in. As in Redis, it disconnects clients of removed
// users. Other clients stay logged in, even if their user's password has changed, and get their
// user's new permissions at once. It is safe for concurrent use.
func (p *Proxy) SetUsers(list []access.User) {
	now := access.NewUsers(list)
	p.users.Store(now)
	p.post(func(l *loop) {
		for _, c := range l.clients {
			c.changeUser(now)
		}
	})
}

func (c *client) changeUser(now *access.Users) {
	switch {
	case c.user != nil && now.ByName[c.user.Name] == nil:
		c.close()
	case c.user != nil:
		before := c.user
		c.user = now.ByName[before.Name]
		if c.tx != nil && len(c.tx.commands) > 0 && (before.ReadOnly != c.user.ReadOnly || !slices.Equal(before.Keys, c.user.Keys)) {
			c.tx.aborted = true // its commands were checked against the old permissions
		}
	case now.Initial != nil: // clients do not need to log in any more
		c.user = now.Initial
		c.loop.timers.Stop(c.login)
		c.login = nil
	}
}
