// Command relay is a Redis proxy with a goroutine for each client, which the bench compares with
// Sonic's event loop. It parses, counts and forwards commands, and does nothing else.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

const readSize = 64 << 10

func main() {
	listen := flag.String("listen", "", "`address` for clients")
	redis := flag.String("redis", "", "`address` of Redis")
	shared := flag.Bool("shared", false, "all clients use one connection to Redis")
	flag.Parse()
	fmt.Fprintln(os.Stderr, "relay:", run(*listen, *redis, *shared))
	os.Exit(1)
}

// run serves clients until it cannot accept any more.
func run(listen, redis string, shared bool) error {
	table, err := command.NewTable()
	if err != nil {
		return err
	}
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", listen)
	if err != nil {
		return err
	}
	var all *upstream
	if shared {
		if all, err = dial(redis); err != nil {
			return err
		}
	}
	for {
		conn, err := ln.Accept()
		if err != nil {
			return err
		}
		up := all
		if !shared {
			if up, err = dial(redis); err != nil {
				return err
			}
		}
		go serve(conn, up, table, !shared)
	}
}

// client is the sending half of a client's connection. It has a goroutine of its own, because a
// client that does not read must not stop the others.
type client struct {
	conn net.Conn

	mu     sync.Mutex
	more   *sync.Cond
	out    []byte
	closed bool
}

func newClient(conn net.Conn) *client {
	c := &client{conn: conn}
	c.more = sync.NewCond(&c.mu)
	go c.write()
	return c
}

func (c *client) deliver(replies []byte) {
	c.mu.Lock()
	c.out = append(c.out, replies...)
	c.mu.Unlock()
}

func (c *client) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.more.Signal()
	_ = c.conn.Close()
}

func (c *client) write() {
	var out []byte
	for {
		c.mu.Lock()
		for len(c.out) == 0 && !c.closed {
			c.more.Wait()
		}
		if c.closed {
			c.mu.Unlock()
			return
		}
		out, c.out = c.out, out[:0]
		c.mu.Unlock()
		if _, err := c.conn.Write(out); err != nil {
			return
		}
	}
}

// serve reads the commands of a client and gives those of one read to up in one piece.
func serve(conn net.Conn, up *upstream, table *command.Table, own bool) {
	c := newClient(conn)
	defer c.close()
	if own {
		defer func() { _ = up.conn.Close() }()
	}
	parser := new(resp.Parser)
	limits := resp.Limits{Bulk: 512 << 20, Arguments: 1 << 20, Request: 1 << 30}
	in := make([]byte, 0, readSize)
	for {
		if cap(in)-len(in) < readSize/4 {
			in = append(make([]byte, 0, 2*cap(in)), in...)
		}
		n, err := conn.Read(in[len(in):cap(in)])
		if err != nil {
			return
		}
		in = in[:len(in)+n]
		used, commands := 0, 0
		for used < len(in) {
			n, err := parser.Next(in[used:], &limits)
			if err != nil {
				return
			}
			if n == 0 {
				break
			}
			if len(parser.Args) > 0 {
				name := in[used+parser.Args[0].Start : used+parser.Args[0].End]
				if table.Lookup(name, nil) == nil {
					return
				}
				commands++
			}
			used += n
		}
		if commands > 0 {
			up.send(c, in[:used], commands)
		}
		in = append(in[:0], in[used:]...)
	}
}

// upstream is a connection to Redis. Its writer sends together the commands that came while it wrote.
type upstream struct {
	conn net.Conn

	mu      sync.Mutex
	more    *sync.Cond
	out     []byte
	waiting []waiting // for replies, in the order of the commands
}

type waiting struct {
	client  *client
	replies int
}

func dial(redis string) (*upstream, error) {
	conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", redis)
	if err != nil {
		return nil, err
	}
	u := &upstream{conn: conn}
	u.more = sync.NewCond(&u.mu)
	go u.write()
	go u.read()
	return u, nil
}

func (u *upstream) send(c *client, commands []byte, replies int) {
	u.mu.Lock()
	u.out = append(u.out, commands...)
	u.waiting = append(u.waiting, waiting{c, replies})
	u.mu.Unlock()
	u.more.Signal()
}

func (u *upstream) write() {
	var out []byte
	for {
		u.mu.Lock()
		for len(u.out) == 0 {
			u.more.Wait()
		}
		out, u.out = u.out, out[:0]
		u.mu.Unlock()
		if _, err := u.conn.Write(out); err != nil {
			return
		}
	}
}

func (u *upstream) read() {
	var scan resp.Scanner
	var present waiting
	var queue []waiting
	var dirty []*client
	in := make([]byte, 0, 4*readSize)
	for {
		if cap(in)-len(in) < readSize {
			in = append(make([]byte, 0, 2*cap(in)), in...)
		}
		n, err := u.conn.Read(in[len(in):cap(in)])
		if err != nil {
			return
		}
		in = in[:len(in)+n]
		used := 0
		for used < len(in) {
			n, done, err := scan.Scan(in[used:])
			if err != nil {
				return
			}
			if n == 0 {
				break
			}
			if present.replies == 0 {
				if len(queue) == 0 {
					u.mu.Lock()
					queue, u.waiting = u.waiting, nil
					u.mu.Unlock()
				}
				present, queue = queue[0], queue[1:]
			}
			c := present.client
			if len(dirty) == 0 || dirty[len(dirty)-1] != c {
				dirty = append(dirty, c)
			}
			c.deliver(in[used : used+n])
			used += n
			if done {
				present.replies--
			}
		}
		in = append(in[:0], in[used:]...)
		for _, c := range dirty {
			c.more.Signal()
		}
		dirty = dirty[:0]
	}
}
