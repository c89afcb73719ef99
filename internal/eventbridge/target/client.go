package target

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/model"
)

const (
	connectTimeout = 10 * time.Second
	tlsTimeout     = 10 * time.Second
	keepAlive      = 30 * time.Second
	// maxResponseHeader bounds the headers of an answer.
	maxResponseHeader = 64 << 10
)

// newTransport makes a pool of connections whose dialer asks the guard. It uses HTTP/1.1: each
// attempt has its own connection, so an attempt that is stuck does not delay others. idle bounds
// the idle connections.
func newTransport(guard *Guard, resolver *net.Resolver, settings *tls.Config, idle int, idleFor time.Duration) *http.Transport {
	to := &net.Dialer{Timeout: connectTimeout, KeepAlive: keepAlive, Resolver: resolver, ControlContext: guard.Control}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  nil, // a proxy of the environment would connect to addresses that the guard does not see
		DialContext:            dropUnsent(to.DialContext),
		TLSClientConfig:        settings,
		TLSHandshakeTimeout:    tlsTimeout,
		DisableCompression:     true, // answers are not decompressed: a few bytes cannot become many
		MaxIdleConns:           idle,
		MaxIdleConnsPerHost:    idle,
		IdleConnTimeout:        idleFor,
		MaxResponseHeaderBytes: maxResponseHeader,
		Protocols:              protocols,
	}
}

// dialer makes connections.
type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// dropUnsent makes connections drop unsent data when they are closed. Otherwise the system would go
// on sending it for minutes once the network is back: an attempt that was given up could arrive
// after newer events.
func dropUnsent(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		below := conn
		if encrypted, ok := conn.(*tls.Conn); ok && encrypted != nil {
			below = encrypted.NetConn()
		}
		if tcp, ok := below.(*net.TCPConn); ok && tcp != nil {
			_ = tcp.SetLinger(0) // it may be closed already
		}
		return conn, err
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
