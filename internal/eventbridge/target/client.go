package target

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
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
	// maxConnectionAge bounds how long requests use a connection: a change of the receiver's
	// address in DNS takes effect after that time, also if there are always requests.
	maxConnectionAge = 5 * time.Minute
)

// pool has the connections of webhooks, and replaces old ones. It is safe for concurrent use.
type pool struct {
	create func() *http.Transport

	mu      sync.Mutex
	current *http.Transport
	created time.Time
}

func newPool(create func() *http.Transport) *pool {
	return &pool{create: create, current: create(), created: time.Now()}
}

// RoundTrip sends a request on a connection that is younger than maxConnectionAge.
func (p *pool) RoundTrip(r *http.Request) (*http.Response, error) { return p.transport().RoundTrip(r) }

// transport returns the current transport, or a new one if that is too old. The old one closes its
// connections when they are idle.
func (p *pool) transport() *http.Transport {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.created) >= maxConnectionAge {
		go p.current.CloseIdleConnections() // which may take long: nobody waits for it
		p.current, p.created = p.create(), now
	}
	return p.current
}

// CloseIdleConnections closes the connections that are idle, and each other one when it is idle.
func (p *pool) CloseIdleConnections() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current.CloseIdleConnections()
}

// newTransport makes a transport whose dialer asks the guard. It uses HTTP/1.1: each attempt has
// its own connection, so an attempt that is stuck does not delay others. idle bounds the idle
// connections.
func newTransport(guard *Guard, resolver *net.Resolver, settings *tls.Config, idle int) *http.Transport {
	to := &net.Dialer{Timeout: connectTimeout, KeepAlive: keepAlive, Resolver: resolver, ControlContext: guard.Control}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  nil, // a proxy of the environment would connect to addresses that the guard does not see
		DialContext:            closingSoon(to.DialContext),
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

// closingSoon makes connections that TLS closes soon. net/http closes idle connections one after the
// other, under a lock that every request needs. TLS waits up to five seconds to send its last alert
// to a receiver that reads nothing.
func closingSoon(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &connection{conn}, nil
	}
}

type connection struct{ net.Conn }

// lastWrite is how long the last alert of TLS may take.
const lastWrite = 5 * time.Millisecond

// SetWriteDeadline is called only by crypto/tls, before it writes its last alert and after.
func (c *connection) SetWriteDeadline(t time.Time) error {
	if soon := time.Now().Add(lastWrite); t.After(soon) {
		t = soon
	}
	return c.Conn.SetWriteDeadline(t)
}

// newRequestContext returns the context of one request. end ends it; connected reports whether the
// request got a connection.
//
// When ctx ends, the connection is closed and drops unsent data. Otherwise the system would go on
// sending it for minutes once the network is back: an attempt that was given up could arrive after
// newer events.
func newRequestContext(ctx context.Context) (_ context.Context, end context.CancelFunc, connected func() bool) {
	requesting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var mu sync.Mutex
	var conn net.Conn // of the request
	set := func(to net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		conn = to
		if ctx.Err() != nil {
			dropUnsent(conn)
		}
	}
	requesting = httptrace.WithClientTrace(requesting, &httptrace.ClientTrace{
		GetConn: func(string) { set(nil) }, // also for a second connection, if the first was closed while idle
		GotConn: func(got httptrace.GotConnInfo) { set(got.Conn) },
	})
	unwatch := context.AfterFunc(ctx, func() {
		mu.Lock()
		dropUnsent(conn)
		mu.Unlock()
		cancel()
	})
	end = func() {
		unwatch()
		cancel()
	}
	return requesting, end, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return conn != nil
	}
}

// dropUnsent makes conn drop unsent data when it is closed. conn may be nil.
func dropUnsent(conn net.Conn) {
	if encrypted, ok := conn.(*tls.Conn); ok && encrypted != nil {
		conn = encrypted.NetConn()
	}
	if c, ok := conn.(*connection); ok {
		conn = c.Conn
	}
	if tcp, ok := conn.(*net.TCPConn); ok && tcp != nil {
		_ = tcp.SetLinger(0) // it may be closed already
	}
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
	switch {
	case (c.Certificate == "") != (c.Key == ""):
		return nil, errors.New("must have both certificate and key, or neither")
	case c.Certificate != "":
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
