package proxy

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// streamID is the id of a stream entry.
type streamID struct{ ms, seq uint64 }

func parseStreamID(b []byte) (id streamID, ok bool) {
	ms, seq, ok := bytes.Cut(b, []byte("-"))
	if !ok {
		return id, false
	}
	first, ok1 := resp.ParseInt(ms)
	second, ok2 := resp.ParseInt(seq)
	return streamID{uint64(first), uint64(second)}, ok1 && ok2
}

func (id streamID) after(other streamID) bool {
	return id.ms > other.ms || id.ms == other.ms && id.seq > other.seq
}

// unpublishedReplies holds replies of one client, in order. The first one waits until the broker has
// stored its effect.
type unpublishedReplies struct {
	data   []byte
	writes []pendingWrite
}

// pendingWrite says that data from start on may go out once all effects up to id are published. The
// write's own reply ends at end.
type pendingWrite struct {
	start, end int
	id         streamID
}

// handlePublished handles a function's reply that contains the id of its effect.
func (c *client) handlePublished(p *pending, reply []byte, proto int) {
	if len(reply) == 0 || reply[0] != '*' {
		c.deliver(replies.FromFunction(p.cmd, p.emptyArray, reply, proto)) // an error
		return
	}
	both := resp.Elements(reply)
	if len(both) != 2 {
		c.deliver(resp.AppendError(nil, "ERR Sonic cannot read the reply of its function"))
		return
	}
	c.deliverPublished(resp.Text(both[0]), replies.FromFunction(p.cmd, p.emptyArray, both[1], proto))
}

// deliverPublished sends a reply once the broker has stored the effect with the id in text. It
// sends the reply at once if there is no id, or if ack is local.
func (c *client) deliverPublished(text, reply []byte) {
	l := c.loop
	var write *pendingWrite
	if l.cfg.AckPublished && !c.closed {
		if id, ok := parseStreamID(text); ok && id.after(l.published) {
			if c.unpublished == nil {
				c.unpublished = &unpublishedReplies{}
				l.unpublished = append(l.unpublished, c)
			}
			c.unpublished.writes = append(c.unpublished.writes, pendingWrite{start: len(c.unpublished.data), id: id})
			write = &c.unpublished.writes[len(c.unpublished.writes)-1]
		}
	}
	c.deliver(reply)
	if write != nil && c.unpublished != nil {
		write.end = len(c.unpublished.data)
	}
}

// failUnpublished calls failUnpublished of each client with waiting replies.
func (l *loop) failUnpublished() {
	waiting := l.unpublished
	l.unpublished = nil
	for _, c := range waiting {
		c.failUnpublished()
	}
}

// failUnpublished answers writes whose effects the broker does not have yet with an error. The
// connection to the Redis that executed them is lost. The next Redis may have older data without
// these effects. So a later id in the topic does not prove that the topic has them.
func (c *client) failUnpublished() {
	h := c.unpublished
	if c.closed || h == nil {
		return
	}
	c.unpublished = nil
	data, at := make([]byte, 0, len(h.data)), 0
	for _, write := range h.writes {
		data = append(data, h.data[at:write.start]...)
		data = resp.AppendError(data, errUnpublished)
		at = write.end
	}
	c.loop.proxy.metrics.unknownOutcome.Add(float64(len(h.writes)))
	c.deliver(append(data, h.data[at:]...))
	if !c.closed {
		c.resumeIfBelowLimit()
	}
}

// publishedUpTo sends the replies that waited for effects up to id.
func (l *loop) publishedUpTo(id streamID) {
	if !id.after(l.published) {
		return
	}
	l.published = id
	waiting := l.unpublished
	l.unpublished = nil
	for _, c := range waiting {
		if c.closed || c.unpublished == nil {
			continue
		}
		c.releaseUpTo(id)
		if c.unpublished != nil {
			l.unpublished = append(l.unpublished, c)
		}
	}
}

// releaseUpTo sends the client's replies that waited for effects up to id.
func (c *client) releaseUpTo(id streamID) {
	h := c.unpublished
	n := 0
	for n < len(h.writes) && !h.writes[n].id.after(id) {
		n++
	}
	c.unpublished = nil
	if n == len(h.writes) {
		c.deliver(h.data)
		c.resumeIfBelowLimit()
		return
	}
	start := h.writes[n].start
	if c.deliver(h.data[:start]); c.closed {
		return
	}
	c.unpublished = &unpublishedReplies{data: append([]byte(nil), h.data[start:]...)}
	for _, write := range h.writes[n:] {
		c.unpublished.writes = append(c.unpublished.writes, pendingWrite{write.start - start, write.end - start, write.id})
	}
}
