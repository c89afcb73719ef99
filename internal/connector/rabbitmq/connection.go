package rabbitmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/aviaryhq/aviary/pkg/secret"
)

const (
	// frameMax is asked for; the broker may answer with less.
	frameMax = 128 << 10
	// closeTimeout bounds closing a connection by AMQP's handshake.
	closeTimeout = time.Second
)

// brokerConnection is one connection to the broker.
type brokerConnection struct {
	*amqp.Connection
	socket        *asyncSocket
	timedOut      atomic.Bool // withTimeout has dropped it
	answerTimeout time.Duration
}

// drop closes the socket at once.
func (c *brokerConnection) drop() { _ = c.socket.Conn.Close() }

// withTimeout calls f, which sends requests to the broker, and drops the connection when f takes
// longer than answerTimeout. The library waits for ever: RabbitMQ 3.10.8 does not answer a consume
// request for a quorum queue that has not recovered after a crash. While it waits, the channel
// cannot be closed either.
func (c *brokerConnection) withTimeout(f func() error) error {
	t := time.AfterFunc(c.answerTimeout, func() {
		c.timedOut.Store(true)
		c.drop()
	})
	defer t.Stop()
	return f()
}

// lostError says why the connection ended.
func (c *brokerConnection) lostError(address string, reason *amqp.Error) error {
	err := plainError(reason)
	if c.timedOut.Load() {
		err = fmt.Errorf("no answer within %s", c.answerTimeout)
	}
	return fmt.Errorf("lost the connection to RabbitMQ at %s: %w", address, err)
}

// close closes the connection by AMQP's handshake, or drops it when the broker does not answer in
// time, as under an alarm, when it reads nothing.
func (c *brokerConnection) close() {
	t := time.AfterFunc(closeTimeout, c.drop)
	defer t.Stop()
	_ = c.Close()
}

// dial makes one connection. Channels and delivery tags end with it. Errors are for people and hold
// no password. dial reads credentials and certificates anew each time, because they are rotated.
func (c Connection) dial(ctx context.Context, role string) (*brokerConnection, error) {
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
		cfg, err := c.TLS.Client(uri.Host)
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
	w := newAsyncSocket(socket)
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
	return &brokerConnection{Connection: conn, socket: w, answerTimeout: c.ConnectTimeout}, nil
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

// explainLogin says what the library's errors of the handshake mean. A broker that refuses a user
// just closes the connection, as it would when it is shutting down, so the sentence leaves room for
// that.
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
		return fmt.Errorf("user %s, virtual host %q: %w", user, vhost, plainError(refused))
	}
	return err
}

// plainError is an error of the library's without its prefix; nil means that the other side closed
// without giving a reason.
func plainError(err *amqp.Error) error {
	if err == nil {
		return errors.New("closed without a reason")
	}
	if err.Server {
		return fmt.Errorf("%s (%d)", err.Reason, err.Code)
	}
	return errors.New(err.Reason)
}

// plainErrorOf is plainError for errors of any type.
func plainErrorOf(err error) error {
	var a *amqp.Error
	if errors.As(err, &a) {
		return plainError(a)
	}
	return err
}
