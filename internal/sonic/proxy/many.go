package proxy

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

const (
	// manyWrites go to Redis in one call at most: it runs them in one piece, so other connections wait for all of them.
	manyWrites = 64
	// manyBytes bounds such a call. What a longer write costs is in its bytes, and it goes alone.
	manyBytes = 16 << 10
	// manyArguments of a write with its name: the number of the others is one digit.
	manyArguments = 9
)

// many are writes, of whichever clients of a connection, that come one behind the other and go to Redis in one call. Of what a short write
// costs Redis, the call and the entry of the outbox are the most. They do not wait for more: the call ends with the round of the loop.
type many struct {
	n         int
	arguments int
	first     *command.Command
	mode      int    // length of the mode, which begins out
	head      int    // length of the first write's head, which is next
	out       []byte // the call's arguments
}

// headsOf returns what precedes a command's arguments in a call of several writes, by the number of the arguments; nil for commands that
// are not called so.
func headsOf(cmd *command.Command) [][]byte {
	if !script.InMany(cmd.Name) {
		return nil
	}
	heads := make([][]byte, manyArguments)
	for n := range heads {
		heads[n] = resp.AppendBulk(nil, strings.ToUpper(cmd.Name)+" "+strconv.Itoa(n))
	}
	return heads
}

// headOf returns the head of a write, nil when it goes alone.
func (p *Proxy) headOf(cmd *command.Command, r request) []byte {
	heads := p.heads[cmd.Index]
	if heads == nil || r.len() > manyArguments || r.len() < 2 || len(r.raw) > manyBytes {
		return nil
	}
	if cmd.Name == "set" {
		for i := 3; i < r.len(); i++ {
			if resp.EqualFold(r.arg(i), "get") { // the replies of one call are held in memory until all have come
				return nil
			}
		}
	}
	return heads[r.len()-1]
}

// gather adds a write to those that go in one call.
func (b *backend) gather(c *client, cmd *command.Command, head []byte, r request) {
	m := &b.many
	if m.n == manyWrites || m.n > 0 && (len(m.out)+len(r.raw) > manyBytes || !bytes.Equal(m.out[:m.mode], c.mode)) {
		b.endMany()
	}
	if m.n == 0 {
		m.first, m.mode, m.head = cmd, len(c.mode), len(head)
		m.out = append(m.out[:0], c.mode...)
	}
	b.await(pending{client: c, cmd: cmd, kind: function})
	m.n++
	m.arguments += r.len()
	m.out = append(append(m.out, head...), r.behind(1)...)
	b.touch()
	if b.unreachable() {
		b.endMany() // which fails it
	}
}

// endMany puts the call of the writes that were gathered behind what is to be sent. A single one is called as any write is.
func (b *backend) endMany() {
	m := &b.many
	n := m.n
	if n == 0 {
		return
	}
	before := len(b.out)
	if n == 1 {
		b.out = b.l.p.appendCall(b.out, m.first, m.out[:m.mode], m.arguments-1, m.out[m.mode+m.head:])
	} else {
		b.replies.at(b.replies.n - n).many = uint8(n)
		b.out = append(resp.AppendHeader(b.out, '*', m.arguments+5), b.l.p.callMany...)
		b.out = append(b.out, m.out...)
	}
	m.n, m.arguments = 0, 0
	b.appended(len(b.out) - before)
}

// shareOut gives the first n clients that wait their parts of the reply of one call, which is an error of all, or a list.
func (b *backend) shareOut(n int, reply []byte) {
	b.noteReadOnly(reply)
	list := reply[0] == '*'
	if list {
		head := bytes.IndexByte(reply, '\n') + 1
		if count, ok := resp.ParseInt(bytes.TrimRight(reply[1:head], "\r\n")); !ok || count != int64(n) {
			b.lost(errUnexpectedReply)
			return
		}
		reply = reply[head:]
	}
	for range n {
		one := reply
		if list {
			end, err := resp.Length(reply)
			if err != nil {
				b.lost(err)
				return
			}
			one, reply = reply[:end], reply[end:]
		}
		p := b.replies.front()
		p.client.deliver(b.l.p.mend(p.cmd, false, one, b.proto))
		if b.state != up || b.replies.n == 0 { // a client that does not read had it for itself
			return
		}
		b.completed()
		if b.state != up {
			return
		}
	}
}
