package rabbitmq

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/aviaryhq/aviary/pkg/secret"
)

const (
	// frameMax is asked for; the broker may answer with less.
	frameMax = 128 << 10
	// closeTime bounds the polite end of a connection.
	closeTime = time.Second
)

// link is one connection.
type link struct {
	*amqp.Connection
	wire *wire
	late atomic.Bool // it was dropped by within
	wait time.Duration
}

// drop ends it at once.
func (l *link) drop() { _ = l.wire.Conn.Close() }

// within calls f, which asks the broker something, and drops the connection when the answer takes too long. The library waits for ever (RabbitMQ
// 3.10.8 does not answer who wants to consume from a quorum queue that has not come back after a crash), and a channel that is busy so cannot be
// closed either.
func (l *link) within(f func() error) error {
	t := time.AfterFunc(l.wait, func() {
		l.late.Store(true)
		l.drop()
	})
	defer t.Stop()
	return f()
}

// lost explains the end of the connection.
func (l *link) lost(address string, reason *amqp.Error) error {
	err := plain(reason)
	if l.late.Load() {
		err = fmt.Errorf("no answer within %s", l.wait)
	}
	return fmt.Errorf("lost the connection to RabbitMQ at %s: %w", address, err)
}

// close ends it politely, or at once when the broker does not answer in time: it reads nothing under an alarm.
func (l *link) close() {
	t := time.AfterFunc(closeTime, l.drop)
	defer t.Stop()
	_ = l.Close()
}

// dial makes one connection: what will belong to it, channels and delivery tags, ends with it. Errors are for people and hold no password.
// Credentials and certificates are read again each time: they are rotated.
func (c Connection) dial(ctx context.Context, role string) (*link, error) {
	uri, err := amqp.ParseURI(c.URL)
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
	sasl, user, err := c.login()
	if err != nil {
		return nil, fmt.Errorf("RabbitMQ at %s: %w", address, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.ConnectTimeout)
	defer cancel()
	socket, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot reach RabbitMQ at %s: %w", address, err)
	}
	if uri.Scheme == "amqps" {
		cfg, err := c.TLS.client(uri.Host)
		if err == nil {
			secured := tls.Client(socket, cfg)
			if err = secured.HandshakeContext(ctx); err == nil {
				socket, err = secured, nil
			}
		}
		if err != nil {
			_ = socket.Close()
			return nil, fmt.Errorf("RabbitMQ at %s: TLS: %w", address, err)
		}
	}
	deadline, _ := ctx.Deadline()
	_ = socket.SetDeadline(deadline) // of the handshake; the library takes it away afterwards
	w := newWire(socket)
	unwatch := context.AfterFunc(ctx, func() { _ = w.Close() })
	properties := amqp.Table{"product": "Aviary", "platform": "Go"}
	properties.SetClientConnectionName(c.Name + " " + role)
	conn, err := amqp.Open(w, amqp.Config{
		SASL: sasl, Vhost: uri.Vhost, FrameSize: frameMax, Heartbeat: c.Heartbeat, Properties: properties, Locale: "en_US",
	})
	if !unwatch() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("RabbitMQ at %s: %w", address, explainLogin(err, user, uri.Vhost))
	}
	return &link{Connection: conn, wire: w, wait: c.ConnectTimeout}, nil
}

// address is host:port, without credentials.
func (c Connection) address() string {
	uri, err := amqp.ParseURI(c.URL)
	if err != nil {
		return "an address that cannot be read"
	}
	return net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
}

func (c Connection) login() (sasl []amqp.Authentication, user string, err error) {
	if c.Auth == authExternal {
		return []amqp.Authentication{&amqp.ExternalAuth{}}, "of the client certificate", nil
	}
	password := c.Password
	if c.PasswordFile != "" { // before the default password
		if password, err = secret.ReadFile(c.PasswordFile); err != nil {
			return nil, "", fmt.Errorf("password_file: %w", err)
		}
	}
	return []amqp.Authentication{&amqp.PlainAuth{Username: c.Username, Password: password.Reveal()}}, strconv.Quote(c.Username), nil
}

func (t TLS) client(host string) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.Insecure} //nolint:gosec // by the user's choice
	if cfg.ServerName == "" {
		cfg.ServerName = host
	}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file: %s holds no certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file, key_file: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// explainLogin says what the library's errors of the handshake mean. A broker that refuses a user just closes the connection, as it would when it
// is shutting down, so the sentence leaves room for that.
func explainLogin(err error, user, vhost string) error {
	switch {
	case errors.Is(err, amqp.ErrCredentials):
		return fmt.Errorf("closed the connection while user %s logged in: wrong user name or password, or it is stopping", user)
	case errors.Is(err, amqp.ErrSASL):
		return errors.New("does not offer the mechanism of key auth")
	case errors.Is(err, amqp.ErrVhost):
		return fmt.Errorf("closed the connection when user %s opened virtual host %q", user, vhost)
	}
	var refused *amqp.Error
	if errors.As(err, &refused) && refused.Server {
		return fmt.Errorf("user %s, virtual host %q: %w", user, vhost, plain(refused))
	}
	return err
}

// plain is an error of the library's without its wrapping; nil means that the other side closed without giving a reason.
func plain(err *amqp.Error) error {
	if err == nil {
		return errors.New("closed without a reason")
	}
	if err.Server {
		return fmt.Errorf("%s (%d)", err.Reason, err.Code)
	}
	return errors.New(err.Reason)
}

// explain is plain for errors of any type.
func explain(err error) error {
	var a *amqp.Error
	if errors.As(err, &a) {
		return plain(a)
	}
	return err
}
