package proxy

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// streamID is the id of a stream's entry.
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

// heldReplies are replies of one client, in order, of which the first waits until the broker has its effect.
type heldReplies struct {
	data  []byte
	marks []heldMark
}

// heldMark says that what is in data from start on may go out when everything up to id was published. The write's own reply ends at end.
type heldMark struct {
	start, end int
	id         streamID
}

// append adds a part of a reply that waits only for those before it.
func (h *heldReplies) append(piece []byte) { h.data = append(h.data, piece...) }

// published takes a function's reply with the id of its effect.
func (c *client) published(p *pending, reply []byte, proto int) {
	if len(reply) == 0 || reply[0] != '*' {
		c.deliver(c.l.p.mend(p.cmd, p.emptyArray, reply, proto)) // an error
		return
	}
	both, err := resp.Elements(reply)
	if err != nil || len(both) != 2 {
		c.deliver(resp.AppendError(nil, "ERR Sonic cannot read the reply of its function"))
		return
	}
	c.deliverPublished(resp.Text(both[0]), c.l.p.mend(p.cmd, p.emptyArray, both[1], proto))
}

// deliverPublished sends a reply once the broker has the effect id; at once when there is none, or when nobody asked for
// it.
func (c *client) deliverPublished(text, reply []byte) {
	l := c.l
	var mark *heldMark
	if l.cfg.Ack == AckPublished && !c.closed {
		if id, ok := parseStreamID(text); ok && id.after(l.published) {
			if c.held == nil {
				c.held = &heldReplies{}
				l.held = append(l.held, c)
			}
			c.held.marks = append(c.held.marks, heldMark{start: len(c.held.data), id: id})
			mark = &c.held.marks[len(c.held.marks)-1]
		}
	}
	c.deliver(reply)
	if mark != nil && c.held != nil {
		mark.end = len(c.held.data)
	}
}

// doubt has no reply wait any more, of any client.
func (l *loop) doubt() {
	waiting := l.held
	l.held = nil
	for _, c := range waiting {
		c.doubt()
	}
}

// doubt answers writes whose effects the broker does not have yet with an error. The Redis that executed them is gone: the one that comes may be
// older, and have no such effects, and what it stores under later ids says nothing about them.
func (c *client) doubt() {
	h := c.held
	if c.closed || h == nil {
		return
	}
	c.held = nil
	data, at := make([]byte, 0, len(h.data)), 0
	for _, mark := range h.marks {
		data = append(data, h.data[at:mark.start]...)
		data = resp.AppendError(data, errUnpublished)
		at = mark.end
	}
	c.l.p.metrics.unknown.Add(float64(len(h.marks)))
	c.deliver(append(data, h.data[at:]...))
	if !c.closed {
		c.relax()
	}
}

// publishedUpTo lets replies go out that waited.
func (l *loop) publishedUpTo(id streamID) {
	if !id.after(l.published) {
		return
	}
	l.published = id
	waiting := l.held
	l.held = nil
	for _, c := range waiting {
		if c.closed || c.held == nil {
			continue
		}
		c.release(id)
		if c.held != nil {
			l.held = append(l.held, c)
		}
	}
}

// release sends what waited for effects up to id.
func (c *client) release(id streamID) {
	h := c.held
	n := 0
	for n < len(h.marks) && !h.marks[n].id.after(id) {
		n++
	}
	if n < len(h.marks) {
		start := h.marks[n].start
		piece := h.data[:start]
		rest := &heldReplies{data: append([]byte(nil), h.data[start:]...)}
		for _, mark := range h.marks[n:] {
			rest.marks = append(rest.marks, heldMark{mark.start - start, mark.end - start, mark.id})
		}
		c.held = nil
		c.deliver(piece)
		if !c.closed {
			c.held = rest
		}
		return
	}
	c.held = nil
	c.deliver(h.data)
	c.relax()
}
