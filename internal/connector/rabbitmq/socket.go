package rabbitmq

import (
	"bufio"
	"net"
	"sync"
	"time"
)

const (
	readBuffer = 64 << 10
	// maxReusedBuffer is the largest write buffer that writeLoop uses again.
	maxReusedBuffer = 1 << 20
	// closeWriteTimeout is how long Close may take to write what is left.
	closeWriteTimeout = 500 * time.Millisecond
)

// asyncSocket is the socket under the library's connection. It batches writes, and Write never
// blocks.
//
// The library flushes after every message, with one system call each, and reads 4 KiB at a time.
// Here a goroutine (writeLoop) writes everything that has gathered since its last write, and reads
// are larger.
//
// When the broker does not read, as under a memory alarm, the library's publishing blocks without
// regard for contexts, and holds a lock that acknowledgements and heartbeats need. Write never
// blocks, so that cannot happen. The publisher bounds the buffered bytes: a sink keeps unconfirmed
// bytes within window_bytes, and everything else on a connection is small.
type asyncSocket struct {
	net.Conn
	reader *bufio.Reader

	mu          sync.Mutex
	writeBuffer []byte
	err         error // of the socket; nothing is written after it
	closed      bool

	wakeup chan struct{} // holds one token when writeBuffer is not empty, or closed is set
	done   chan struct{} // closed when writeLoop has returned
}

func newAsyncSocket(conn net.Conn) *asyncSocket {
	w := &asyncSocket{Conn: conn, reader: bufio.NewReaderSize(conn, readBuffer), wakeup: make(chan struct{}, 1), done: make(chan struct{})}
	go w.writeLoop()
	return w
}

func (s *asyncSocket) Read(p []byte) (int, error) { return s.reader.Read(p) }

// Write buffers p. Its error is that of an earlier write to the socket.
func (s *asyncSocket) Write(p []byte) (int, error) {
	s.mu.Lock()
	err := s.err
	if err == nil && s.closed {
		err = net.ErrClosed
	}
	if err == nil {
		s.writeBuffer = append(s.writeBuffer, p...)
	}
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	s.wake()
	return len(p), nil
}

func (s *asyncSocket) wake() {
	select {
	case s.wakeup <- struct{}{}:
	default:
	}
}

func (s *asyncSocket) writeLoop() {
	defer close(s.done)
	var spare []byte
	for range s.wakeup {
		s.mu.Lock()
		batch, closed := s.writeBuffer, s.closed
		s.writeBuffer = spare[:0]
		s.mu.Unlock()
		if len(batch) > 0 {
			if _, err := s.Conn.Write(batch); err != nil {
				s.mu.Lock()
				s.err, s.writeBuffer = err, nil
				s.mu.Unlock()
				_ = s.Conn.Close() // so that Read fails, too
				return
			}
		}
		if closed {
			return
		}
		if spare = batch; cap(spare) > maxReusedBuffer {
			spare = nil
		}
	}
}

// Close writes what is buffered, for closeWriteTimeout at most, and closes the socket. It may be
// called again.
func (s *asyncSocket) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	_ = s.SetWriteDeadline(time.Now().Add(closeWriteTimeout))
	s.wake()
	<-s.done
	return s.Conn.Close()
}
