package rabbitmq

import (
	"bufio"
	"net"
	"sync"
	"time"
)

const (
	readBuffer = 64 << 10
	// keptBuffer is the largest write buffer that is used again.
	keptBuffer = 1 << 20
	// farewell is how long Close may take to write what is left.
	farewell = 500 * time.Millisecond
)

// wire is the socket under the library's connection, with two of its habits mended.
//
// The library flushes after every message, one system call each, and reads 4 KiB at a time. Here a goroutine of its own writes whatever has come
// together since its last write, and reads are larger.
//
// And the library's publishing blocks without regard for contexts, while it holds a lock that acknowledgements and heartbeats need, when the
// broker does not read, as under a memory alarm. Here Write never blocks. What is waiting is bounded by who publishes: a sink keeps the bytes that
// are not confirmed within window_bytes, and everything else on a connection is small.
type wire struct {
	net.Conn
	in *bufio.Reader

	mu     sync.Mutex
	out    []byte
	err    error // of the socket; nothing is written after it
	closed bool

	more chan struct{} // has room for one: there is something in out, or closed is set
	done chan struct{} // closed when pump has returned
}

func newWire(conn net.Conn) *wire {
	w := &wire{Conn: conn, in: bufio.NewReaderSize(conn, readBuffer), more: make(chan struct{}, 1), done: make(chan struct{})}
	go w.pump()
	return w
}

func (w *wire) Read(p []byte) (int, error) { return w.in.Read(p) }

// Write takes p. An error is that of an earlier write.
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	err := w.err
	if err == nil && w.closed {
		err = net.ErrClosed
	}
	if err == nil {
		w.out = append(w.out, p...)
	}
	w.mu.Unlock()
	if err != nil {
		return 0, err
	}
	w.wake()
	return len(p), nil
}

func (w *wire) wake() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *wire) pump() {
	defer close(w.done)
	var spare []byte
	for range w.more {
		w.mu.Lock()
		batch, closed := w.out, w.closed
		w.out = spare[:0]
		w.mu.Unlock()
		if len(batch) > 0 {
			if _, err := w.Conn.Write(batch); err != nil {
				w.mu.Lock()
				w.err, w.out = err, nil
				w.mu.Unlock()
				_ = w.Conn.Close() // the reader is told thereby
				return
			}
		}
		if closed {
			return
		}
		if spare = batch; cap(spare) > keptBuffer {
			spare = nil
		}
	}
}

// Close writes what is waiting, for a moment, and closes the socket. It may be called again.
func (w *wire) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	_ = w.SetWriteDeadline(time.Now().Add(farewell))
	w.wake()
	<-w.done
	return w.Conn.Close()
}
