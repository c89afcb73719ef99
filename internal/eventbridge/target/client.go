package target

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

const (
	connectTimeout = 10 * time.Second
	tlsTimeout     = 10 * time.Second
	keepAlive      = 30 * time.Second
	// idleConnections bounds the connections that stay open for later deliveries, over all
	// subscribers, for idleTimeout at most.
	idleConnections = 512
	idleTimeout     = 30 * time.Second
	// maxResponseHeader bounds the headers of an answer.
	maxResponseHeader = 64 << 10
	// maxConnectionAge is after which time a connection is closed in favor of a new one: a change of
	// the receiver's address in DNS takes effect although there are always requests.
	maxConnectionAge = 5 * time.Minute
)

// newTransport makes a transport whose dialer asks the guard. It uses HTTP/1.1: each attempt has
// its own connection, so an attempt that is stuck does not delay others. idle bounds the idle
// connections.
func (f *Factory) newTransport(settings *tls.Config, idle int) *http.Transport {
	to := &net.Dialer{Timeout: connectTimeout, KeepAlive: keepAlive, Resolver: f.resolver, ControlContext: f.guard.Control}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  nil, // a proxy of the environment would connect to addresses that the guard does not see
		DialContext:            ownConnections(to.DialContext),
		TLSClientConfig:        settings,
		TLSHandshakeTimeout:    tlsTimeout,
		DisableCompression:     true, // answers are not decompressed: a few bytes cannot become many
		MaxIdleConns:           idle,
		MaxIdleConnsPerHost:    idle,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
		Protocols:              protocols,
	}
}

// dialer makes connections.
type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// ownConnections makes a dialer return connections of this package.
func ownConnections(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &connection{Conn: conn, opened: time.Now()}, nil
	}
}

// connection is a connection to a receiver, below TLS. It closes without waiting for the receiver.
type connection struct {
	net.Conn
	opened time.Time
	// unanswered is the request that was sent last, until the head of its answer is there.
	unanswered atomic.Pointer[request]
}

// Close drops unsent data of a request without an answer. Otherwise the system would go on sending
// it for minutes once the network is back: an attempt that was given up could arrive after newer
// events.
func (c *connection) Close() error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok && c.unanswered.Load() != nil {
		_ = tcp.SetLinger(0) // it may be closed already
	}
	return c.Conn.Close()
}

// lastWrite is how long the last alert of TLS may take. TLS itself waits up to five seconds to send
// it to a receiver that reads nothing, and net/http closes idle connections one after the other,
// under a lock that every request needs.
const lastWrite = 5 * time.Millisecond

// SetWriteDeadline is called only by crypto/tls, before it writes its last alert and after.
func (c *connection) SetWriteDeadline(t time.Time) error {
	if soon := time.Now().Add(lastWrite); t.After(soon) {
		t = soon
	}
	return c.Conn.SetWriteDeadline(t)
}

// connectionOf returns the connection below TLS.
func connectionOf(conn net.Conn) *connection {
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	return conn.(*connection) //nolint:errcheck // the dialer makes no other
}

// clientTLS makes the TLS settings of a subscriber. Certificates are always verified.
func clientTLS(c *model.ClientTLS) (*tls.Config, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(0)}
	if c == nil {
		return settings, nil
	}
	if c.CA != "" {
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM([]byte(c.CA)) {
			return nil, errors.New("must have certificates in PEM as ca")
		}
	}
	if c.Certificate != "" || c.Key != "" {
		pair, err := tls.X509KeyPair([]byte(c.Certificate), []byte(c.Key.Reveal()))
		if err != nil {
			return nil, errors.New("must have a certificate in PEM, and its private key as key")
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	return settings, nil
}

// connectionError returns why there was no answer: reason is for machines, the error for people.
func connectionError(ctx context.Context, err error, timeout time.Duration) (reason string, _ error) {
	var refused *RefusedAddress
	switch {
	case errors.As(err, &refused):
		return ReasonAddress, refused
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return ReasonTimeout, fmt.Errorf("no answer within %s", timeout)
	case ctx.Err() != nil:
		return ReasonStopped, errors.New("the attempt was canceled: Eventbridge stops or the subscriber has changed")
	}
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var operation *net.OpError // an alert from the other side
	if errors.As(err, &certificate) || errors.As(err, &record) || errors.As(err, &operation) && operation.Op == "remote error" {
		return ReasonTLS, fmt.Errorf("TLS: %w", err)
	}
	var timed net.Error
	if errors.As(err, &timed) && timed.Timeout() { // of connecting, of TLS, or of the attempt just before its context ends
		return ReasonTimeout, fmt.Errorf("no answer: %w", err)
	}
	return ReasonConnection, fmt.Errorf("no answer: %w", err)
}
