package proxy

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

const (
	// maxBatchWrites is how many writes go to Redis in one call at most. Redis runs them in one
	// step, so other connections wait for all of them.
	maxBatchWrites = 64
	// maxBatchBytes is the maximum size of such a call. A longer write goes alone, for a shared
	// call would save little of its cost.
	maxBatchBytes = 16 << 10
	// maxBatchArguments is the maximum number of arguments of a write, including its name: the head
	// has one digit for the others.
	maxBatchArguments = 9
)

// writeBatch collects successive writes of all clients of a connection, which go to Redis in one
// call. For a short write, most of the cost in Redis is the call and the entry in the outbox.
// Writes do not wait for further writes: the call goes out at the end of the loop's round.
type writeBatch struct {
	n         int
	arguments int
	first     *command.Command
	slot      int    // of the first write, in front of a Redis Cluster
	mode      int    // length of the mode, which is at the beginning of out
	head      int    // length of the head of the first write, which follows the mode; with its outbox in front of a Redis Cluster
	out       []byte // the call's arguments
}

// batchHeads returns the heads that precede a command's arguments in a call of several writes, by
// the number of arguments. It returns nil for commands that do not go in such a call.
func batchHeads(cmd *command.Command) [][]byte {
	if !script.InMany(cmd.Name) {
		return nil
	}
	heads := make([][]byte, maxBatchArguments)
	for n := range heads {
		heads[n] = resp.AppendBulk(nil, strings.ToUpper(cmd.Name)+" "+strconv.Itoa(n))
	}
	return heads
}

// batchHead returns the head of a write, or nil if the write must go alone.
func (p *Proxy) batchHead(cmd *command.Command, r request.Request) []byte {
	heads := p.batchHeads[cmd.Index]
	if heads == nil || r.Len() > maxBatchArguments || r.Len() < 2 || len(r.Raw) > maxBatchBytes {
		return nil
	}
	if cmd.Name == "set" {
		for i := 3; i < r.Len(); i++ {
			if resp.EqualFold(r.Arg(i), "get") { // its reply may be large, and Redis holds all replies of a call in memory
				return nil
			}
		}
	}
	return heads[r.Len()-1]
}

// addToBatch adds a write to the collected ones.
func (b *backend) addToBatch(c *client, cmd *command.Command, head []byte, r request.Request) {
	m, out := &b.batch, b.loop.proxy.outbox(c.slot)
	if m.n == maxBatchWrites || m.n > 0 && (len(m.out)+len(r.Raw) > maxBatchBytes || !bytes.Equal(m.out[:m.mode], c.mode)) {
		b.endBatch()
	}
	if m.n == 0 {
		m.first, m.slot, m.mode, m.head = cmd, c.slot, len(c.mode), len(head)+len(out)
		m.out = append(m.out[:0], c.mode...)
	}
	b.addPending(pending{client: c, cmd: cmd, kind: function, call: true})
	m.n++
	m.arguments += r.Len()
	if out != nil {
		m.arguments++
	}
	m.out = append(append(append(m.out, head...), out...), r.ArgsAfter(1)...)
	b.scheduleFlush()
	if b.unreachable() {
		b.endBatch() // appended then fails the write
	}
}

// endBatch appends the call of the collected writes to out. A single write gets an ordinary call.
func (b *backend) endBatch() {
	m := &b.batch
	n := m.n
	if n == 0 {
		return
	}
	before := len(b.out)
	if n == 1 {
		arguments := m.arguments - 1
		if b.primary != "" {
			arguments-- // its outbox is the key
		}
		b.out = b.loop.proxy.appendCall(b.out, b.loop.proxy.functions[m.first.Index], m.slot, m.out[:m.mode], arguments, m.out[m.mode+m.head:])
	} else {
		b.replies.at(b.replies.n - n).batchSize = uint8(n)
		words := m.arguments + 5
		if b.primary != "" {
			words-- // it has no key
		}
		b.out = append(resp.AppendHeader(b.out, '*', words), b.loop.proxy.callBatch...)
		b.out = append(b.out, m.out...)
	}
	m.n, m.arguments = 0, 0
	b.appended(len(b.out) - before)
}

// deliverBatch distributes the reply of a call of n writes to their clients. The reply is a list,
// or one error for all. Writes that a primary of a Redis Cluster has refused are sent again alone.
func (b *backend) deliverBatch(n int, reply []byte) {
	b.checkReadOnly(reply)
	list := reply[0] == '*'
	if list {
		head := bytes.IndexByte(reply, '\n') + 1
		if count, ok := resp.ParseInt(bytes.TrimRight(reply[1:head], "\r\n")); !ok || count != int64(n) {
			b.lost(errUnexpectedReply)
			return
		}
		reply = reply[head:]
	}
	var calls [][]byte // of the last writes
	for i := range n {
		one := reply
		if list {
			end := resp.Length(reply)
			one, reply = reply[:end], reply[end:]
		}
		p := b.replies.front()
		if b.primary != "" {
			if b.isRefusal(p, one) {
				if calls == nil {
					calls = b.singleCalls(n - i)
				}
				retried := *p
				retried.batchSize = 0
				b.replies.pop()
				b.retry(retried, calls[len(calls)-(n-i)], one)
				continue
			}
			p.client.failOvertaken(p.slot, p.order)
			p = b.replies.front()
			b.begin(p)
		}
		p.client.deliver(replies.FromFunction(p.cmd, false, one, b.proto))
		if b.state != up || b.replies.n == 0 { // deliver has closed a client that does not read, and with it its own connection
			return
		}
		b.completed()
		if b.state != up {
			return
		}
	}
}

// singleCalls returns the calls of the last n of several writes that go to Redis in one call, each as
// a call of its own. They are the first pending ones.
func (b *backend) singleCalls(n int) [][]byte {
	words := resp.Elements(b.command(n - 1))
	var writes [][][]byte // of each write the head, the outbox and the arguments
	for rest := words[4:]; len(rest) > 1; {
		head := resp.Text(rest[0])
		end := 2 + int(head[len(head)-1]-'0')
		writes = append(writes, rest[:end])
		rest = rest[end:]
	}
	all := make([][]byte, n)
	for i, write := range writes[len(writes)-n:] {
		out := resp.AppendHeader(nil, '*', len(write)+3)
		out = append(out, b.loop.proxy.functions[b.replies.at(i).cmd.Index]...)
		out = append(append(out, write[1]...), words[3]...)
		all[i] = append(out, slices.Concat(write[2:]...)...)
	}
	return all
}
