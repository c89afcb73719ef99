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
	// closeWriteTimeout is how long Close may take to write the buffer.
	closeWriteTimeout = 500 * time.Millisecond
)

// asyncSocket is the socket under the library's connection. Write never blocks: writeLoop writes
// everything that has gathered since its last write. The library flushes after every message, with
// one system call each, and reads 4 KiB at a time.
//
// When the broker does not read, as under a memory alarm, the library's publishing would block
// without regard for contexts, and hold a lock that acknowledgements and heartbeats need. A sink
// bounds the buffered bytes by window_bytes; everything else on a connection is small.
type asyncSocket struct {
	net.Conn
	reader *bufio.Reader

	mu          sync.Mutex
	wakeup      *sync.Cond // writeBuffer is not empty, or closed is set
	writeBuffer []byte
	err         error // of the socket; nothing is written after it
	closed      bool

	done chan struct{} // closed when writeLoop has returned
}

func newAsyncSocket(conn net.Conn) *asyncSocket {
	s := &asyncSocket{Conn: conn, reader: bufio.NewReaderSize(conn, readBuffer), done: make(chan struct{})}
	s.wakeup = sync.NewCond(&s.mu)
	go s.writeLoop()
	return s
}

func (s *asyncSocket) Read(p []byte) (int, error) { return s.reader.Read(p) }

// Write buffers p. Its error is that of an earlier write to the socket.
func (s *asyncSocket) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	if s.closed {
		return 0, net.ErrClosed
	}
	s.writeBuffer = append(s.writeBuffer, p...)
	s.wakeup.Signal()
	return len(p), nil
}

func (s *asyncSocket) writeLoop() {
	defer close(s.done)
	var spare []byte
	for {
		s.mu.Lock()
		for len(s.writeBuffer) == 0 && !s.closed {
			s.wakeup.Wait()
		}
		batch := s.writeBuffer
		s.writeBuffer = spare[:0]
		s.mu.Unlock()
		if len(batch) == 0 {
			return // closed
		}
		if _, err := s.Conn.Write(batch); err != nil {
			s.mu.Lock()
			s.err, s.writeBuffer = err, nil
			s.mu.Unlock()
			_ = s.Conn.Close() // so that Read fails, too
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
	s.wakeup.Signal()
	<-s.done
	return s.Conn.Close()
}
