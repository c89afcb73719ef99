package proxy

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

const (
	replyOK   = "+OK\r\n"
	replyPong = "+PONG\r\n"
)

// user is who a client has logged in as.
type user struct {
	name     string
	password [sha256.Size]byte
	open     bool // no password is asked for
	readOnly bool
	keys     []string
}

func (u *user) mayName(key []byte) bool {
	if u.keys == nil {
		return true
	}
	for _, prefix := range u.keys {
		if strings.HasPrefix(string(key), prefix) {
			return true
		}
	}
	return false
}

// logIn returns the error of a wrong name or password, "" when the client is logged in.
func (c *client) logIn(name, password []byte) string {
	u := c.l.p.users.Load().named[string(name)]
	if u == nil {
		return errWrongPassword
	}
	given := sha256.Sum256(password)
	if !u.open && subtle.ConstantTimeCompare(given[:], u.password[:]) != 1 {
		return errWrongPassword
	}
	c.user = u
	c.l.timers.stop(c.login)
	c.login = nil
	return ""
}

const errWrongPassword = "WRONGPASS invalid username-password pair or user is disabled."

func (c *client) auth(_ *command.Command, r request) bool {
	name := []byte("default")
	switch {
	case r.len() > 3:
		c.replyError("ERR syntax error")
		return true
	case r.len() == 3:
		name = r.arg(1)
	default:
		if u := c.l.p.users.Load().named["default"]; u == nil || u.open {
			c.replyError("ERR AUTH <password> called without any password configured for the default user. " +
				"Are you sure your configuration is correct?")
			return true
		}
	}
	if problem := c.logIn(name, r.arg(r.len()-1)); problem != "" {
		c.replyError(problem)
		return true
	}
	c.reply([]byte(replyOK))
	return true
}

// hello is HELLO [protover [AUTH user password] [SETNAME name]]. A client that changes its protocol moves to the
// connection of that protocol.
func (c *client) hello(_ *command.Command, r request) bool {
	proto := c.proto
	if r.len() > 1 {
		n, ok := resp.ParseInt(r.arg(1))
		switch {
		case !ok:
			c.replyError("ERR Protocol version is not an integer or out of range")
			return true
		case n != 2 && n != 3:
			c.replyError("NOPROTO unsupported protocol version")
			return true
		}
		proto = int(n)
	}
	if c.outstanding > 0 {
		return false
	}
	var name []byte
	named := false
	for i := 2; i < r.len(); i++ {
		rest := r.len() - 1 - i
		switch option := r.arg(i); {
		case resp.EqualFold(option, "auth") && rest >= 2:
			if problem := c.logIn(r.arg(i+1), r.arg(i+2)); problem != "" {
				c.replyError(problem)
				return true
			}
			i += 2
		case resp.EqualFold(option, "setname") && rest >= 1:
			if !validName(r.arg(i + 1)) {
				c.replyError(errClientName)
				return true
			}
			name, named = r.arg(i+1), true
			i++
		default:
			c.replyError("ERR Syntax error in HELLO option '" + string(cString(option, len(option))) + "'")
			return true
		}
	}
	if c.user == nil {
		c.replyError("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> " +
			"option can be used to authenticate the client and select the RESP protocol version at the same time")
		return true
	}
	if named {
		c.name = append([]byte(nil), name...)
	}
	if proto != c.proto && c.b != nil && c.b.owner == c {
		return c.changeOwn(proto)
	}
	c.proto = proto
	c.setMode()
	c.reply(c.greeting())
	return true
}

// changeOwn has the client's own connection change its protocol. What Redis sent before it knew comes before the answer, in the protocol that was.
func (c *client) changeOwn(proto int) bool {
	b := c.b
	c.busy = true
	b.send(pending{client: c, kind: handled, then: &handling{
		each: func([]byte) {
			b.proto, c.proto = proto, proto
			c.setMode()
			c.proceed()
			c.deliver(c.greeting())
		},
		lost: c.lostCommand,
	}}, resp.AppendCommand(nil, "HELLO", strconv.Itoa(proto)))
	return true
}

func (c *client) greeting() []byte {
	letter, n := byte('*'), 14
	if c.proto == 3 {
		letter, n = '%', 7
	}
	b := resp.AppendHeader(nil, letter, n)
	b = resp.AppendBulk(b, "server")
	b = resp.AppendBulk(b, "redis")
	b = resp.AppendBulk(b, "version")
	b = resp.AppendBulk(b, c.l.p.redisVersion())
	b = resp.AppendBulk(b, "proto")
	b = resp.AppendHeader(b, ':', c.proto)
	b = resp.AppendBulk(b, "id")
	b = resp.AppendHeader(b, ':', int(c.id))
	b = resp.AppendBulk(b, "mode")
	b = resp.AppendBulk(b, "standalone")
	b = resp.AppendBulk(b, "role")
	b = resp.AppendBulk(b, "master")
	b = resp.AppendBulk(b, "modules")
	return resp.AppendHeader(b, '*', 0)
}

func (p *Proxy) redisVersion() string {
	if v := p.version.Load(); v != nil {
		return *v
	}
	return "7.0.0"
}

// swallow is a command of the proxy's own on a client's behalf, whose reply nobody gets.
func (c *client) swallow() pending {
	return pending{kind: handled, then: &handling{each: func([]byte) {}, lost: func(bool) {}}}
}

func (c *client) selectDB(_ *command.Command, r request) bool {
	n, problem := c.l.p.database(r.arg(1))
	switch {
	case problem != "":
		c.replyError(problem)
		return true
	case n == c.db:
		c.reply([]byte(replyOK))
		return true
	case c.outstanding > 0:
		return false
	}
	c.setDB(n)
	c.reply([]byte(replyOK))
	return true
}

// database reads the argument of SELECT. problem is Redis' error.
func (p *Proxy) database(argument []byte) (db int, problem string) {
	n, ok := resp.ParseInt(argument)
	switch {
	case !ok:
		return 0, "ERR value is not an integer or out of range"
	case n > math.MaxInt32 || n < math.MinInt32:
		return 0, "ERR value is out of range, value must between -2147483648 and 2147483647"
	case n < 0 || n >= p.databases.Load():
		return 0, "ERR DB index is out of range"
	}
	return int(n), ""
}

func (c *client) setDB(db int) {
	if db == c.db {
		return
	}
	c.db = db
	c.setMode()
	if c.b != nil && c.b.owner == c {
		c.b.db = db
		c.b.send(c.swallow(), resp.AppendCommand(nil, "SELECT", strconv.Itoa(db)))
	}
}

func (c *client) ping(cmd *command.Command, r request) bool {
	if r.len() > 2 {
		c.replyError("ERR wrong number of arguments for 'ping' command")
		return true
	}
	if c.subs != nil && c.subs.count() > 0 && c.proto == 2 {
		return c.relay(cmd, r)
	}
	if r.len() == 2 {
		c.reply(resp.AppendBulk(nil, r.arg(1)))
		return true
	}
	c.reply([]byte(replyPong))
	return true
}

func (c *client) echo(_ *command.Command, r request) bool {
	c.reply(resp.AppendBulk(nil, r.arg(1)))
	return true
}

func (c *client) quit(_ *command.Command, _ request) bool {
	c.reply([]byte(replyOK))
	c.leave()
	return true
}

// reset makes the client what it was when it came.
func (c *client) reset(_ *command.Command, _ request) bool {
	if c.outstanding > 0 {
		return false
	}
	c.dropOwn()
	c.tx, c.name = nil, nil
	if c.user = c.l.p.users.Load().first; c.user == nil && c.login == nil {
		c.login = c.l.timers.start(c.l.now.Add(c.l.cfg.Limits.AuthTimeout), c.close)
	}
	c.proto, c.db = 2, c.l.cfg.Backend.DB
	c.setMode()
	c.reply([]byte("+RESET\r\n"))
	return true
}

func (c *client) whoAmI(_ *command.Command, _ request) bool {
	c.reply(resp.AppendBulk(nil, c.user.name))
	return true
}

func (c *client) clientID(_ *command.Command, _ request) bool {
	c.reply(resp.AppendHeader(nil, ':', int(c.id)))
	return true
}

func (c *client) clientGetName(_ *command.Command, _ request) bool {
	if len(c.name) == 0 {
		c.replyNull()
		return true
	}
	c.reply(resp.AppendBulk(nil, c.name))
	return true
}

const errClientName = "ERR Client names cannot contain spaces, newlines or special characters."

func validName(name []byte) bool {
	for _, b := range name {
		if b < '!' || b > '~' {
			return false
		}
	}
	return true
}

func (c *client) clientSetName(_ *command.Command, r request) bool {
	if !validName(r.arg(2)) {
		c.replyError(errClientName)
		return true
	}
	c.name = append([]byte(nil), r.arg(2)...)
	c.reply([]byte(replyOK))
	return true
}

func (c *client) replyNull() {
	if c.proto == 3 {
		c.reply([]byte("_\r\n"))
		return
	}
	c.reply([]byte("$-1\r\n"))
}

// info is a line of CLIENT LIST. Fields of which the endpoint knows nothing are those of a client that does nothing.
func (c *client) info() string {
	flags := "N"
	switch {
	case c.tx != nil:
		flags = "x"
	case c.wait != nil:
		flags = "b"
	case c.subs != nil && c.subs.count() > 0:
		flags = "P"
	}
	multi := -1
	if c.tx != nil {
		multi = len(c.tx.commands)
	}
	subs, patterns, shards := 0, 0, 0
	if c.subs != nil {
		subs, patterns, shards = len(c.subs.channels), len(c.subs.patterns), len(c.subs.shards)
	}
	userName := "default"
	if c.user != nil {
		userName = c.user.name
	}
	return fmt.Sprintf("id=%d addr=%s laddr=%s fd=%d name=%s age=%d idle=%d flags=%s db=%d sub=%d psub=%d ssub=%d multi=%d "+
		"qbuf=%d qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=%d oll=0 omem=0 tot-mem=%d events=r cmd=NULL user=%s redir=-1 resp=%d",
		c.id, c.addr, c.here, c.fd, c.name, since(c.l.now, c.created), since(c.l.now, c.last), flags, c.db, subs, patterns, shards, multi,
		len(c.in), len(c.out)-c.sent, cap(c.in)+cap(c.out), userName, c.proto)
}

func (c *client) replyVerbatim(text string) {
	if c.proto == 3 {
		b := resp.AppendHeader(nil, '=', len(text)+4)
		b = append(b, "txt:"...)
		b = append(b, text...)
		c.reply(append(b, '\r', '\n'))
		return
	}
	c.reply(resp.AppendBulk(nil, text))
}

func (c *client) clientInfo(_ *command.Command, _ request) bool {
	c.replyVerbatim(c.info() + "\n")
	return true
}

// clientList lists the clients of this event loop: the others' are theirs alone.
func (c *client) clientList(_ *command.Command, r request) bool {
	ids, kind := map[uint64]bool{}, ""
	switch {
	case r.len() >= 4 && resp.EqualFold(r.arg(2), "id"):
		for i := 3; i < r.len(); i++ {
			n, ok := resp.ParseInt(r.arg(i))
			if !ok || n < 1 {
				c.replyError("ERR Invalid client ID")
				return true
			}
			ids[uint64(n)] = true
		}
	case r.len() == 4 && resp.EqualFold(r.arg(2), "type"):
		if kind = kindOf(r.arg(3)); kind == "" {
			c.replyError(unknownKind(r.arg(3)))
			return true
		}
	case r.len() != 2:
		c.replyError("ERR syntax error")
		return true
	}
	var all []*client
	for _, other := range c.l.clients {
		if (len(ids) == 0 || ids[other.id]) && (kind == "" || kind == other.kind()) {
			all = append(all, other)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].id < all[j].id })
	var text strings.Builder
	for _, other := range all {
		text.WriteString(other.info())
		text.WriteByte('\n')
	}
	c.replyVerbatim(text.String())
	return true
}

func (c *client) clientNoEvict(_ *command.Command, r request) bool {
	if !resp.EqualFold(r.arg(2), "on") && !resp.EqualFold(r.arg(2), "off") {
		c.replyError("ERR syntax error")
		return true
	}
	c.reply([]byte(replyOK))
	return true
}

// clientReply takes only what is the case anyway.
func (c *client) clientReply(_ *command.Command, r request) bool {
	switch mode := r.arg(2); {
	case resp.EqualFold(mode, "on"):
		c.reply([]byte(replyOK))
	case resp.EqualFold(mode, "off"), resp.EqualFold(mode, "skip"):
		c.replyError("ERR Sonic refuses 'client|reply': it leaves out no replies")
	default:
		c.replyError("ERR syntax error")
	}
	return true
}
