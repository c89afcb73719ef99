package proxy

import (
	"strings"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// kind returns the client's type, as CLIENT LIST and CLIENT KILL name it.
func (c *client) kind() string {
	if c.subs != nil && c.subs.count() > 0 {
		return "pubsub"
	}
	return "normal"
}

// kindOf reads the name of a client type. It returns "" for an unknown one.
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
	return "ERR Unknown client type '" + string(request.CString(word, len(word))) + "'"
}

// killFilter holds the filters of CLIENT KILL. A client must match all that are set.
type killFilter struct {
	id                      uint64
	addr, local, user, kind string
	includeSelf             bool // also the client that sent the command
}

func (k *killFilter) matches(c *client) bool {
	return (k.id == 0 || k.id == c.id) && (k.addr == "" || k.addr == c.addr) && (k.local == "" || k.local == c.localAddr) &&
		(k.user == "" || c.user != nil && k.user == c.user.Name) && (k.kind == "" || k.kind == c.kind())
}

// read reads an option and its value. problem is the error that Redis would return, or "".
func (k *killFilter) read(p *Proxy, option, value []byte) (problem string) {
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
		if k.user = string(value); p.users.Load().ByName[k.user] == nil {
			return "ERR No such user '" + string(request.CString(value, len(value))) + "'"
		}
	case resp.EqualFold(option, "skipme") && (resp.EqualFold(value, "yes") || resp.EqualFold(value, "no")):
		k.includeSelf = resp.EqualFold(value, "no")
	default:
		return "ERR syntax error"
	}
	return ""
}

// clientKill runs CLIENT KILL addr, or CLIENT KILL option value ...
func (c *client) clientKill(_ *command.Command, r request.Request) bool {
	k := killFilter{}
	old := r.Len() == 3
	if old {
		k.addr, k.includeSelf = string(r.Arg(2)), true
	}
	for i := 3; i <= r.Len() && !old; i += 2 {
		problem := "ERR syntax error"
		if i < r.Len() {
			problem = k.read(c.loop.proxy, r.Arg(i-1), r.Arg(i))
		}
		if problem != "" {
			c.replyError(problem)
			return true
		}
	}
	killed := 0
	for _, other := range c.loop.clients {
		switch {
		case !k.matches(other), other == c && !k.includeSelf:
			continue
		case other == c:
			c.closeAfterReplies()
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
