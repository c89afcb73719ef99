package proxy

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"time"
)

// tlsBuffer is what a direction of a TLS connection copies at a time.
const tlsBuffer = 8 << 10

// serveTLS returns a socket that stands for the client's: the event loop knows no TLS. Two goroutines copy between both.
func (p *Proxy) serveTLS(ctx context.Context, conn net.Conn) (int, error) {
	return p.relay(tls.Server(conn, p.cfg.TLS), func(secured *tls.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, p.cfg.Limits.AuthTimeout)
		defer cancel()
		return secured.HandshakeContext(ctx)
	})
}

// relayTLS is serveTLS for a connection to Redis, whose handshake is done.
func (p *Proxy) relayTLS(secured *tls.Conn) (int, error) {
	_ = secured.SetDeadline(time.Time{})
	return p.relay(secured, nil)
}

func (p *Proxy) relay(secured *tls.Conn, handshake func(*tls.Conn) error) (int, error) {
	fd, inner, err := socketPair()
	if err != nil {
		_ = secured.Close()
		return -1, err
	}
	p.relays.Store(fd, secured)
	p.background.Go(func() {
		defer func() { _ = inner.Close() }()
		defer func() { _ = secured.Close() }()
		if handshake != nil {
			if err := handshake(secured); err != nil {
				p.metrics.rejected.Inc()
				return
			}
		}
		copyBoth(secured, inner)
	})
	return fd, nil
}

// released bounds how long the peer of a TLS connection may take for the rest, when the event loop has given up its socket fd. It does nothing for
// other sockets. It is safe for concurrent use.
func (p *Proxy) released(fd int) {
	if p.cfg.TLS == nil && p.cfg.Backend.TLS == nil {
		return
	}
	if relay, ok := p.relays.LoadAndDelete(fd); ok {
		if secured, ok := relay.(*tls.Conn); ok {
			_ = secured.NetConn().SetWriteDeadline(time.Now().Add(p.cfg.DrainTimeout))
		}
	}
}

// copyBoth copies both ways until both have ended. A side that sends no more may still receive.
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
		_ = secured.Close() // the event loop has closed it: nobody wants what still comes
	})
	both.Wait()
}

func copyUntilEnd(dst io.Writer, src io.Reader) {
	buf := make([]byte, tlsBuffer)
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
