package proxy

import (
	"strings"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// kind is the client's type as CLIENT LIST and CLIENT KILL name it.
func (c *client) kind() string {
	if c.subs != nil && c.subs.count() > 0 {
		return "pubsub"
	}
	return "normal"
}

// kindOf reads a type of clients; "" for an unknown one.
func kindOf(word []byte) string {
	switch kind := strings.ToLower(string(word)); kind {
	case "normal", "master", "replica", "pubsub":
		return kind
	case "slave":
		return "replica"
	}
	return ""
}

func unknownKind(word []byte) string {
	return "ERR Unknown client type '" + string(cString(word, len(word))) + "'"
}

// killing says which clients CLIENT KILL means: those that are all that is given.
type killing struct {
	id                      uint64
	addr, local, user, kind string
	self                    bool // the client that asks, too
}

func (k *killing) matches(c *client) bool {
	return (k.id == 0 || k.id == c.id) && (k.addr == "" || k.addr == c.addr) && (k.local == "" || k.local == c.here) &&
		(k.user == "" || c.user != nil && k.user == c.user.name) && (k.kind == "" || k.kind == c.kind())
}

// read reads option and its value. problem is Redis' error.
func (k *killing) read(p *Proxy, option, value []byte) (problem string) {
	switch {
	case resp.EqualFold(option, "id"):
		id, ok := resp.ParseInt(value)
		if !ok || id < 1 {
			return "ERR client-id should be greater than 0"
		}
		k.id = uint64(id)
	case resp.EqualFold(option, "type"):
		if k.kind = kindOf(value); k.kind == "" {
			return unknownKind(value)
		}
	case resp.EqualFold(option, "addr"):
		k.addr = string(value)
	case resp.EqualFold(option, "laddr"):
		k.local = string(value)
	case resp.EqualFold(option, "user"):
		if k.user = string(value); p.users.Load().named[k.user] == nil {
			return "ERR No such user '" + string(cString(value, len(value))) + "'"
		}
	case resp.EqualFold(option, "skipme") && (resp.EqualFold(value, "yes") || resp.EqualFold(value, "no")):
		k.self = resp.EqualFold(value, "no")
	default:
		return "ERR syntax error"
	}
	return ""
}

// clientKill is CLIENT KILL addr, or CLIENT KILL option value .., for clients of the same event loop.
func (c *client) clientKill(_ *command.Command, r request) bool {
	k := killing{}
	old := r.len() == 3
	if old {
		k.addr, k.self = string(r.arg(2)), true
	}
	for i := 3; i <= r.len() && !old; i += 2 {
		problem := "ERR syntax error"
		if i < r.len() {
			problem = k.read(c.l.p, r.arg(i-1), r.arg(i))
		}
		if problem != "" {
			c.replyError(problem)
			return true
		}
	}
	killed := 0
	for _, other := range c.l.clients {
		switch {
		case !k.matches(other), other == c && !k.self:
			continue
		case other == c:
			c.leave()
		default:
			other.close()
		}
		killed++
	}
	switch {
	case !old:
		c.reply(resp.AppendHeader(nil, ':', killed))
	case killed == 0:
		c.replyError("ERR No such client")
	default:
		c.reply([]byte(replyOK))
	}
	return true
}
