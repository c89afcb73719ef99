// Package tlsrelay gives each TLS connection a socket that an event loop can read and write. It may
// not import access, upstream, request or replies.
package tlsrelay

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/proxy/eventloop"
)

// relayBuffer is how many bytes a direction of a TLS connection copies at a time.
const relayBuffer = 8 << 10

// Relays are the TLS connections of event loops, which do not implement TLS. For each connection
// there is a plain socket for the event loop, and two goroutines copy between both. All methods are
// safe for concurrent use.
type Relays struct {
	closeTimeout time.Duration
	copying      sync.WaitGroup
	connections  sync.Map // *tls.Conn by the descriptor of the event loop
}

// New returns relays. After the event loop has closed its socket, a peer may take up to
// closeTimeout to receive the remaining data.
func New(closeTimeout time.Duration) *Relays { return &Relays{closeTimeout: closeTimeout} }

// Server returns a plain socket for a client's TLS connection. It does not wait for the handshake,
// which may take as long as timeout. If the handshake fails, it calls failed.
func (r *Relays) Server(ctx context.Context, conn net.Conn, conf *tls.Config, timeout time.Duration, failed func()) (int, error) {
	return r.relay(tls.Server(conn, conf), func(secured *tls.Conn) bool {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if err := secured.HandshakeContext(ctx); err != nil {
			failed()
			return false
		}
		return true
	})
}

// Client returns a plain socket for a TLS connection to a server, after its handshake.
func (r *Relays) Client(secured *tls.Conn) (int, error) {
	_ = secured.SetDeadline(time.Time{})
	return r.relay(secured, func(*tls.Conn) bool { return true })
}

func (r *Relays) relay(secured *tls.Conn, handshake func(*tls.Conn) bool) (int, error) {
	fd, inner, err := eventloop.SocketPair()
	if err != nil {
		_ = secured.Close()
		return -1, err
	}
	r.connections.Store(fd, secured)
	r.copying.Go(func() {
		defer func() { _ = inner.Close() }()
		defer func() { _ = secured.Close() }()
		if handshake(secured) {
			copyBoth(secured, inner)
		}
	})
	return fd, nil
}

// Released says that the event loop has closed its socket fd. It bounds how long the peer of the
// TLS connection may take to receive the remaining data. It does nothing for other sockets.
func (r *Relays) Released(fd int) {
	if connection, ok := r.connections.LoadAndDelete(fd); ok {
		if secured, ok := connection.(*tls.Conn); ok {
			_ = secured.NetConn().SetWriteDeadline(time.Now().Add(r.closeTimeout))
		}
	}
}

// Wait returns when all connections have ended. No connection may be added meanwhile.
func (r *Relays) Wait() { r.copying.Wait() }

// copyBoth copies in both directions until both have ended. A side that sends no more may still
// receive.
func copyBoth(secured *tls.Conn, inner net.Conn) {
	var both sync.WaitGroup
	both.Go(func() {
		copyUntilEnd(inner, secured)
		if half, ok := inner.(*net.UnixConn); ok {
			_ = half.CloseWrite()
		}
	})
	both.Go(func() {
		copyUntilEnd(secured, inner)
		_ = secured.Close() // the event loop has closed its socket and reads no more
	})
	both.Wait()
}

func copyUntilEnd(dst io.Writer, src io.Reader) {
	buf := make([]byte, relayBuffer)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
