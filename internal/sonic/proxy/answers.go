package proxy

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/access"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

const (
	replyOK   = "+OK\r\n"
	replyPong = "+PONG\r\n"
)

// logIn logs the client in. It returns an error for a wrong name or password, or "".
func (c *client) logIn(name, password []byte) string {
	u := c.loop.proxy.users.Load().ByName[string(name)]
	if u == nil || !u.Accepts(password) {
		return errWrongPassword
	}
	c.user = u
	c.loop.timers.Stop(c.login)
	c.login = nil
	return ""
}

const errWrongPassword = "WRONGPASS invalid username-password pair or user is disabled."

func (c *client) auth(_ *command.Command, r request.Request) bool {
	name := []byte("default")
	switch {
	case r.Len() > 3:
		return c.replyError("ERR syntax error")
	case r.Len() == 3:
		name = r.Arg(1)
	default:
		if u := c.loop.proxy.users.Load().ByName["default"]; u == nil || u.Open {
			return c.replyError("ERR AUTH <password> called without any password configured for the default user. " +
				"Are you sure your configuration is correct?")
		}
	}
	if problem := c.logIn(name, r.Arg(r.Len()-1)); problem != "" {
		return c.replyError(problem)
	}
	return c.replyOK()
}

// changeUser gives the client the permissions that its user has now, or closes it if the user is gone.
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

// hello runs HELLO [protover [AUTH user password] [SETNAME name]]. A client that changes its
// protocol moves to the shared connection of that protocol.
func (c *client) hello(_ *command.Command, r request.Request) bool {
	proto := c.proto
	if r.Len() > 1 {
		n, ok := resp.ParseInt(r.Arg(1))
		switch {
		case !ok:
			return c.replyError("ERR Protocol version is not an integer or out of range")
		case n != 2 && n != 3:
			return c.replyError("NOPROTO unsupported protocol version")
		}
		proto = int(n)
	}
	if c.outstanding > 0 {
		return false
	}
	var name []byte
	named := false
	for i := 2; i < r.Len(); i++ {
		rest := r.Len() - 1 - i
		switch option := r.Arg(i); {
		case resp.EqualFold(option, "auth") && rest >= 2:
			if problem := c.logIn(r.Arg(i+1), r.Arg(i+2)); problem != "" {
				return c.replyError(problem)
			}
			i += 2
		case resp.EqualFold(option, "setname") && rest >= 1:
			if !validName(r.Arg(i + 1)) {
				return c.replyError(errClientName)
			}
			name, named = r.Arg(i+1), true
			i++
		default:
			return c.replyError("ERR Syntax error in HELLO option '" + string(request.CString(option, len(option))) + "'")
		}
	}
	if c.user == nil {
		return c.replyError("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> " +
			"option can be used to authenticate the client and select the RESP protocol version at the same time")
	}
	if named {
		c.name = append([]byte(nil), name...)
	}
	c.leaveChannels()
	if proto != c.proto && c.backend != nil && c.backend.owner == c {
		return c.changeDedicatedProtocol(proto)
	}
	c.proto = proto
	c.setMode()
	c.changeWatchProtocol()
	return c.reply(c.greeting())
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
	b = resp.AppendBulk(b, c.loop.proxy.dialer.Version())
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

func (c *client) selectDB(_ *command.Command, r request.Request) bool {
	n, problem := c.loop.proxy.database(r.Arg(1))
	switch {
	case problem != "":
		return c.replyError(problem)
	case n == c.db:
		return c.replyOK()
	case c.outstanding > 0:
		return false
	}
	c.setDB(n)
	return c.replyOK()
}

// database reads the argument of SELECT. problem is the error that Redis would return, or "".
func (p *Proxy) database(argument []byte) (db int, problem string) {
	n, ok := resp.ParseInt(argument)
	switch {
	case !ok:
		return 0, "ERR value is not an integer or out of range"
	case n > math.MaxInt32 || n < math.MinInt32:
		return 0, "ERR value is out of range, value must between -2147483648 and 2147483647"
	case n < 0 || n >= p.dialer.Databases():
		return 0, "ERR DB index is out of range"
	}
	return int(n), ""
}

func (c *client) setDB(db int) {
	c.db = db
	c.setMode()
	if c.backend != nil && c.backend.owner == c {
		c.backend.db = db
		c.backend.send(discardReply(), resp.AppendCommand(nil, "SELECT", strconv.Itoa(db)))
	}
}

func (c *client) ping(_ *command.Command, r request.Request) bool {
	if r.Len() > 2 {
		return c.replyError("ERR wrong number of arguments for 'ping' command")
	}
	if c.subs != nil && c.subs.count() > 0 && c.proto == 2 {
		return c.reply(pingWhileSubscribed(r))
	}
	if r.Len() == 2 {
		return c.reply(resp.AppendBulk(nil, r.Arg(1)))
	}
	return c.reply([]byte(replyPong))
}

func (c *client) echo(_ *command.Command, r request.Request) bool {
	return c.reply(resp.AppendBulk(nil, r.Arg(1)))
}

func (c *client) quit(_ *command.Command, _ request.Request) bool {
	c.replyOK()
	c.closeAfterReplies()
	return true
}

// reset returns the client to the state of a new connection.
func (c *client) reset(_ *command.Command, _ request.Request) bool {
	if c.outstanding > 0 {
		return false
	}
	c.closeDedicated()
	c.tx, c.name = nil, nil
	if c.user = c.loop.proxy.users.Load().Initial; c.user == nil && c.login == nil {
		c.login = c.loop.timers.Start(c.loop.now.Add(c.loop.cfg.Limits.AuthTimeout), c.close)
	}
	c.proto, c.db = 2, c.loop.cfg.Backend.DB
	c.setMode()
	return c.reply([]byte("+RESET\r\n"))
}

// answerOwn answers a command by what the proxy knows of the client.
func (c *client) answerOwn(cmd *command.Command, _ request.Request) bool {
	return c.reply(ownAnswer(cmd.Name)(c))
}

// ownAnswer returns a function that answers a command without Redis, also at EXEC. It returns nil for
// a command that cannot be in a transaction.
func ownAnswer(name string) func(*client) []byte {
	switch name {
	case "client|id":
		return func(c *client) []byte { return resp.AppendHeader(nil, ':', int(c.id)) }
	case "acl|whoami":
		return func(c *client) []byte { return resp.AppendBulk(nil, c.user.Name) }
	case "client|getname":
		return func(c *client) []byte {
			if len(c.name) > 0 {
				return resp.AppendBulk(nil, c.name)
			}
			return c.null()
		}
	}
	return nil
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

func (c *client) clientSetName(_ *command.Command, r request.Request) bool {
	if !validName(r.Arg(2)) {
		return c.replyError(errClientName)
	}
	c.name = append([]byte(nil), r.Arg(2)...)
	return c.replyOK()
}

// null returns the null of the client's protocol.
func (c *client) null() []byte {
	if c.proto == 3 {
		return []byte("_\r\n")
	}
	return []byte("$-1\r\n")
}

// info returns a line of CLIENT LIST. Fields that the proxy does not know have the values of an
// idle client.
func (c *client) info() string {
	flags := "N"
	switch {
	case c.tx != nil:
		flags = "x"
	case c.blocked != nil || c.blockingInRedis > 0:
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
		userName = c.user.Name
	}
	return fmt.Sprintf("id=%d addr=%s laddr=%s fd=%d name=%s age=%d idle=%d flags=%s db=%d sub=%d psub=%d ssub=%d multi=%d "+
		"qbuf=%d qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=%d oll=0 omem=0 tot-mem=%d events=r cmd=NULL user=%s redir=-1 resp=%d",
		c.id, c.addr, c.localAddr, c.fd, c.name, since(c.loop.now, c.created), since(c.loop.now, c.last), flags, c.db, subs, patterns, shards, multi,
		len(c.in), len(c.out)-c.sent, cap(c.in)+cap(c.out), userName, c.proto)
}

func (c *client) replyVerbatim(text string) bool {
	if c.proto == 3 {
		b := resp.AppendHeader(nil, '=', len(text)+4)
		b = append(b, "txt:"...)
		b = append(b, text...)
		return c.reply(append(b, '\r', '\n'))
	}
	return c.reply(resp.AppendBulk(nil, text))
}

func (c *client) clientInfo(_ *command.Command, _ request.Request) bool {
	return c.replyVerbatim(c.info() + "\n")
}

// clientList runs CLIENT LIST, with ids or a type or neither.
func (c *client) clientList(_ *command.Command, r request.Request) bool {
	ids, kind := map[uint64]bool{}, ""
	switch {
	case r.Len() >= 4 && resp.EqualFold(r.Arg(2), "id"):
		for i := 3; i < r.Len(); i++ {
			n, ok := resp.ParseInt(r.Arg(i))
			if !ok || n < 1 {
				return c.replyError("ERR Invalid client ID")
			}
			ids[uint64(n)] = true
		}
	case r.Len() == 4 && resp.EqualFold(r.Arg(2), "type"):
		if kind = kindOf(r.Arg(3)); kind == "" {
			return c.replyError(unknownKind(r.Arg(3)))
		}
	case r.Len() != 2:
		return c.replyError("ERR syntax error")
	}
	var all []*client
	for _, other := range c.loop.clients {
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
	return c.replyVerbatim(text.String())
}

func (c *client) clientNoEvict(_ *command.Command, r request.Request) bool {
	if !resp.EqualFold(r.Arg(2), "on") && !resp.EqualFold(r.Arg(2), "off") {
		return c.replyError("ERR syntax error")
	}
	return c.replyOK()
}

// clientReply accepts only CLIENT REPLY ON, which is always in effect.
func (c *client) clientReply(_ *command.Command, r request.Request) bool {
	switch mode := r.Arg(2); {
	case resp.EqualFold(mode, "on"):
		c.replyOK()
	case resp.EqualFold(mode, "off"), resp.EqualFold(mode, "skip"):
		c.replyError("ERR Sonic refuses 'client|reply': it sends every reply")
	default:
		c.replyError("ERR syntax error")
	}
	return true
}

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
			return c.replyError(problem)
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
		c.replyOK()
	}
	return true
}
