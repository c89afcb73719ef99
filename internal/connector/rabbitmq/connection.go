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

	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/pkg/secret"
)

const (
	// frameMax is asked for; the broker may answer with less.
	frameMax = 128 << 10
	// connectTimeout bounds connecting, TLS and logging in, and later each answer.
	connectTimeout = 10 * time.Second
	// closeTimeout bounds closing a connection by AMQP's handshake.
	closeTimeout = time.Second
)

// client is what a source and a sink have in common: it has one connection at a time.
type client struct {
	connection Connection
	role       string
	health     *connector.Health
	metrics    *metrics
	log        *zap.Logger
	// drainCtx ends when a stop must not wait any longer.
	drainCtx context.Context
}

func newClient(c Connection, role string, o connector.Options) *client {
	o = o.WithDefaults()
	return &client{
		connection: c, role: role, health: connector.NewHealth(o.Report), metrics: newMetrics(o.Metrics),
		log: o.Log.Named("rabbitmq"), drainCtx: o.DrainContext,
	}
}

// metrics are those of one source or sink.
type metrics struct {
	connections, redelivered, unroutable prometheus.Counter
	connected, blocked                   prometheus.Gauge
}

func newMetrics(m *connector.PartMetrics) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return m.Counter("rabbitmq_"+name, help, "role").WithLabelValues()
	}
	gauge := func(name, help string) prometheus.Gauge {
		return m.Gauge("rabbitmq_"+name, help, "role").WithLabelValues()
	}
	return &metrics{
		connections: counter("connections_total", "Connections made to RabbitMQ."),
		redelivered: counter("redelivered_total", "Messages that RabbitMQ delivered again, to this or another consumer."),
		unroutable:  counter("unroutable_total", "Messages that RabbitMQ returned because no queue takes them."),
		connected:   gauge("connected", "1 while there is a connection to RabbitMQ."),
		blocked:     gauge("blocked", "1 while RabbitMQ accepts no messages because of a memory or disk alarm."),
	}
}

// connect calls serve with one connection after another until ctx ends.
func (c *client) connect(ctx context.Context, serve func(*brokerConnection) error) {
	c.repeat(ctx, nil, connector.Connection, func() error {
		conn, err := c.connection.dial(ctx, c.role)
		if err != nil {
			return err
		}
		c.metrics.connections.Inc()
		c.metrics.connected.Set(1)
		defer c.metrics.connected.Set(0)
		c.health.Set(connector.Connection, nil)
		return serve(conn)
	})
}

// repeat calls attempt until ctx or conn, if there is one, ends. Its error is the health of part.
func (c *client) repeat(ctx context.Context, conn *brokerConnection, part string, attempt func() error) {
	pause := connector.Reconnect()
	ended := func() bool { return ctx.Err() != nil || conn != nil && conn.IsClosed() }
	for !ended() {
		began := time.Now()
		err := attempt()
		if errors.Is(err, errResize) || ended() {
			continue
		}
		if !errors.Is(err, errAmbiguous) { // a message was at fault, not the broker
			c.health.Set(part, err)
		}
		pause.Held(time.Since(began))
		pause.Wait(ctx)
	}
}

// brokerConnection is one connection to the broker.
type brokerConnection struct {
	*amqp.Connection
	lost          <-chan *amqp.Error
	socket        *asyncSocket
	address       string
	timedOut      atomic.Bool // withTimeout has dropped it
	answerTimeout time.Duration
}

func (c *brokerConnection) drop() { _ = c.socket.Conn.Close() }

// withTimeout calls f, which sends requests to the broker, and drops the connection when f takes
// longer than answerTimeout. The library waits without limit: RabbitMQ 3.10.8 does not answer a consume
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
func (c *brokerConnection) lostError(reason *amqp.Error) error {
	err := plainError(reason)
	if c.timedOut.Load() {
		err = fmt.Errorf("no answer within %s", c.answerTimeout)
	}
	return fmt.Errorf("lost the connection to RabbitMQ at %s: %w", c.address, err)
}

// close closes the connection by AMQP's handshake, or drops it when the broker does not answer in
// time: under an alarm it reads nothing.
func (c *brokerConnection) close() {
	t := time.AfterFunc(closeTimeout, c.drop)
	defer t.Stop()
	_ = c.Close()
}

// dial makes one connection. Errors hold no password. dial reads credentials and certificates anew
// each time, because they are rotated.
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
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
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
				socket = secured
			}
		}
		if err != nil {
			_ = socket.Close()
			return nil, fmt.Errorf("RabbitMQ at %s: TLS: %w", address, err)
		}
	}
	w := newAsyncSocket(socket)
	unwatch := context.AfterFunc(ctx, func() { _ = w.Close() })
	properties := amqp.Table{"product": "Aviary", "platform": "Go"}
	properties.SetClientConnectionName(c.Name + " " + role)
	conn, err := amqp.Open(w, amqp.Config{
		SASL: sasl, Vhost: uri.Vhost, FrameSize: frameMax, Heartbeat: c.Heartbeat, Properties: properties, Locale: "en_US",
	})
	if !unwatch() {
		err = ctx.Err()
	}
	if err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("RabbitMQ at %s: %w", address, explainLogin(err, user, uri.Vhost))
	}
	return &brokerConnection{
		Connection: conn, lost: conn.NotifyClose(make(chan *amqp.Error, 1)), socket: w, address: address,
		answerTimeout: connectTimeout,
	}, nil
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
// only closes the connection, as it does when it stops.
func explainLogin(err error, user, vhost string) error {
	var refused *amqp.Error
	switch {
	case errors.Is(err, amqp.ErrCredentials):
		return fmt.Errorf("closed the connection while user %s logged in: wrong user name or password, or it is stopping", user)
	case errors.Is(err, amqp.ErrSASL):
		return errors.New("does not offer the mechanism that the key auth selects")
	case errors.Is(err, amqp.ErrVhost):
		return fmt.Errorf("closed the connection when user %s opened virtual host %q", user, vhost)
	case errors.As(err, &refused) && refused.Server:
		return fmt.Errorf("user %s, virtual host %q: %w", user, vhost, plainError(refused))
	}
	return err
}

// brokerError is an error of the library's with a text that has no prefix.
type brokerError struct{ cause *amqp.Error }

func (e brokerError) Error() string {
	if e.cause.Server {
		return fmt.Sprintf("%s (%d)", e.cause.Reason, e.cause.Code)
	}
	return e.cause.Reason
}

func (e brokerError) Unwrap() error { return e.cause }

// plainError makes a brokerError of an error of the library's. A nil *amqp.Error means that the
// other side closed without giving a reason.
func plainError(err error) error {
	var a *amqp.Error
	switch {
	case !errors.As(err, &a):
		return err
	case a == nil:
		return errors.New("closed without a reason")
	}
	return brokerError{a}
}

func hasCode(err error, code int) bool {
	var a *amqp.Error
	return errors.As(err, &a) && a.Server && a.Code == code
}

// onChannel calls f with a new channel: the broker closes the channel of a request that it refuses.
// The error is errMissing when a queue or an exchange does not exist.
func onChannel(conn *amqp.Connection, f func(*amqp.Channel) error) error {
	ch, err := conn.Channel()
	if err != nil {
		return plainError(err)
	}
	defer func() { _ = ch.Close() }()
	if err = f(ch); hasCode(err, amqp.NotFound) {
		return errMissing
	}
	return plainError(err)
}
