package app

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// connections bounds the connections of a server, through its ConnState. If there are too many, it
// closes the one that has waited longest for a request, or the newest if all are busy. The zero
// value with a bound is ready for use.
type connections struct {
	most int

	mu      sync.Mutex
	busy    map[net.Conn]bool
	waiting []net.Conn // without a request; the one that waits longest is first
}

// observe is the server's ConnState.
func (c *connections) observe(conn net.Conn, state http.ConnState) {
	if extra := c.note(conn, state); extra != nil {
		_ = extra.Close() // the server notices that, and calls observe again
	}
}

// note returns a connection to close if there are too many.
func (c *connections) note(conn net.Conn, state http.ConnState) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy == nil {
		c.busy = map[net.Conn]bool{}
	}
	delete(c.busy, conn)
	if i := slices.Index(c.waiting, conn); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
	switch state {
	case http.StateActive:
		c.busy[conn] = true
	case http.StateNew, http.StateIdle:
		c.waiting = append(c.waiting, conn)
	default:
		return nil
	}
	if len(c.busy)+len(c.waiting) <= c.most || len(c.waiting) == 0 {
		return nil
	}
	extra := c.waiting[0]
	c.waiting = c.waiting[1:]
	return extra
}
