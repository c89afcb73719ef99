package pieces

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aviaryhq/aviary/test/bench/measure"
)

// redisPaced sends p.Rate commands a second, one at a time, over p.Callers connections
// in turn, and times each from when it was due or, where that is later, from when it was
// sent: a slow reply counts for those that wait behind it, a late timer does not.
//
// Its sockets block and its thread is its own: Go's poller and scheduler, with timers of
// a millisecond, would be most of what it measures.
func redisPaced(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Nanosleep may be late by this many nanoseconds, 50,000 by default.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return err
	}
	conns := make([]*rawConn, p.Callers)
	for i := range conns {
		c, err := dialRaw(p.URL)
		if err != nil {
			return err
		}
		defer c.Close()
		conns[i] = c
	}
	value := measure.Body(p.Payload)
	commands := make([][]byte, 1024)
	for i := range commands {
		key := fmt.Sprintf("key:%012d", i*RedisKeys/len(commands))
		if p.Format == "get" {
			commands[i] = Request("GET", key)
		} else {
			commands[i] = Request("SET", key, string(value))
		}
	}
	interval := time.Second / time.Duration(p.Rate)
	once := func(n int) error {
		c := conns[n%len(conns)]
		if _, err := c.Write(commands[n%len(commands)]); err != nil {
			return err
		}
		return c.reply()
	}
	for n := range len(conns) {
		if err := once(n); err != nil {
			return err
		}
	}
	if err := m.Start(); err != nil {
		return err
	}
	took := make([]time.Duration, 0, int(float64(p.Rate)*p.Seconds))
	due := time.Now()
	var ended time.Time
	for n := 0; n < cap(took) && ctx.Err() == nil; n++ {
		due = due.Add(interval)
		began := due
		if ended.Before(due) { // else it had to wait for the reply before it
			sleep := unix.NsecToTimespec(max(0, time.Until(due)).Nanoseconds())
			_ = unix.Nanosleep(&sleep, nil) // a signal's early end is harmless
			began = time.Now()
		}
		if err := once(n); err != nil {
			return err
		}
		ended = time.Now()
		took = append(took, ended.Sub(began))
	}
	m.Stop(len(took))
	m.Latencies(took)
	return ctx.Err()
}

// rawConn is a TCP connection whose reads and writes block the thread.
type rawConn struct {
	fd int
	in *bufio.Reader
}

func dialRaw(address string) (*rawConn, error) {
	a, err := net.ResolveTCPAddr("tcp4", address)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	c := &rawConn{fd: fd}
	c.in = bufio.NewReaderSize(c, 4096)
	to := &unix.SockaddrInet4{Port: a.Port}
	copy(to.Addr[:], a.IP.To4())
	if err := errors.Join(unix.Connect(fd, to), unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)); err != nil {
		c.Close()
		return nil, fmt.Errorf("cannot connect to %s: %w", address, err)
	}
	return c, nil
}

// Read implements io.Reader.
func (c *rawConn) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(c.fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
		case err == nil && n == 0:
			return 0, io.EOF
		default:
			return max(n, 0), err
		}
	}
}

// Write implements io.Writer for what a socket's buffer takes at once.
func (c *rawConn) Write(b []byte) (int, error) {
	n, err := unix.Write(c.fd, b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return max(n, 0), err
}

// Close ends the connection.
func (c *rawConn) Close() { _ = unix.Close(c.fd) }

func (c *rawConn) reply() error { return ReadReply(c.in) }

// ReadReply takes one reply: a line, or a bulk string.
func ReadReply(in *bufio.Reader) error {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return err
	}
	switch line[0] {
	case '+', ':':
		return nil
	case '$':
		n, err := strconv.Atoi(string(line[1 : len(line)-2]))
		if err != nil || n < 0 {
			return err
		}
		_, err = in.Discard(n + 2)
		return err
	default:
		return fmt.Errorf("reply %q", line)
	}
}

// Request is a command as clients send it.
func Request(args ...string) []byte {
	out := []byte("*" + strconv.Itoa(len(args)) + "\r\n")
	for _, a := range args {
		out = append(out, "$"+strconv.Itoa(len(a))+"\r\n"+a+"\r\n"...)
	}
	return out
}
