// Package ask asks a broker one question over a separate connection. The underlying client cannot
// do this: its question whether a topic exists makes some brokers create the topic, and it reports
// late, and in its log only, why a connection fails. The package imports auth and protofield.
package ask

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/auth"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/protofield"
)

// The commands, and the fields that hold them.
const (
	connect          = 2
	connected        = 3
	refusedConnect   = 14
	ping             = 18
	pong             = 19
	metadata         = 21
	metadataResponse = 22
	authChallenge    = 36
)

const (
	protocolVersion = 20
	// maxAnswer bounds a command: these are all short.
	maxAnswer = 1 << 20
)

// The errors of the protocol that say more than their text.
const (
	authenticationError = 3
	authorizationError  = 4
	topicNotFound       = 11
)

var (
	// ErrNotFound says that a topic does not exist.
	ErrNotFound = errors.New("the topic does not exist")
	// ErrOld says that a broker cannot be asked whether a topic exists without that it may create
	// it.
	ErrOld = errors.New("this broker is too old to tell whether a topic exists")
)

// Broker is whom to ask.
type Broker struct {
	Addresses   []string         // one after the other is tried, until one can be connected to
	TLS         *tls.Config      // nil: plain
	Credentials auth.Credentials // nil: none
	Listener    string           // of the brokers' listeners, by name; empty: their default
}

// Connect connects and logs in, and no more.
func (b Broker) Connect(ctx context.Context) error {
	c, err := b.open(ctx)
	if err == nil {
		c.close()
	}
	return err
}

// Partitions is how many partitions topic has, whose name is a full one: 0 without partitions. It
// is ErrNotFound for one that does not exist, and does not create it.
func (b Broker) Partitions(ctx context.Context, topic string) (int, error) {
	c, err := b.open(ctx)
	if err != nil {
		return 0, err
	}
	defer c.close()
	if !c.tells {
		return 0, ErrOld
	}
	const topicField, request, autoCreation = 1, 2, 6
	body := text(nil, topicField, []byte(topic))
	body = number(body, request, 1)
	body = number(body, autoCreation, 0)
	kind, answer, err := c.ask(metadata, body)
	if err != nil {
		return 0, err
	}
	if kind != metadataResponse {
		return 0, refusal(answer)
	}
	const partitions, failed, code, message = 1, 3, 4, 5
	f, err := protofield.Fields(answer)
	if err == nil && f[failed].Number != 0 {
		err = explain(f[code].Number, f[message].Text)
	}
	return int(f[partitions].Number), err
}

// conn is a connection that is logged in.
type conn struct {
	net.Conn
	tells  bool // whether a topic exists
	forget func() bool
}

func (c *conn) close() {
	c.forget()
	_ = c.Conn.Close()
}

// open connects to the first of the addresses that can be connected to.
func (b Broker) open(ctx context.Context) (*conn, error) {
	var first error
	for _, address := range b.Addresses {
		c, err := b.openOne(ctx, address)
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil || errors.Is(err, auth.ErrAuthentication) {
			break
		}
	}
	return nil, first
}

func (b Broker) openOne(ctx context.Context, address string) (*conn, error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if b.TLS != nil {
		settings := b.TLS.Clone()
		settings.ServerName, _, _ = net.SplitHostPort(address)
		secured := tls.Client(raw, settings)
		if err := secured.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, fmt.Errorf("%s: %w: %w", address, auth.ErrTLS, err)
		}
		raw = secured
	}
	c := &conn{Conn: raw}
	c.forget = context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	if err := b.logIn(c); err != nil {
		c.close()
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer: %w", context.Cause(ctx))
		}
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return c, nil
}

func (b Broker) logIn(c *conn) error {
	const version, data, protocol, method = 1, 3, 4, 5
	body := text(nil, version, []byte("aviary"))
	if b.Credentials != nil {
		if err := b.Credentials.Init(); err != nil {
			return fmt.Errorf("%w: %w", auth.ErrAuthentication, err)
		}
		secret, err := b.Credentials.GetData()
		if err != nil && !errors.Is(err, auth.ErrIssuerUnavailable) {
			err = fmt.Errorf("%w: %w", auth.ErrAuthentication, err)
		}
		if err != nil {
			return err
		}
		body = text(body, data, secret)
		body = text(body, method, []byte(b.Credentials.Name()))
	}
	body = number(body, protocol, protocolVersion)
	kind, answer, err := c.ask(connect, body)
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("it closes the connection: check whether it expects TLS")
	case err != nil:
		return err
	case kind != connected:
		return refusal(answer)
	}
	const flags, tells = 4, 5
	f, err := protofield.Fields(answer)
	if err != nil {
		return err
	}
	f, err = protofield.Fields(f[flags].Text)
	c.tells = f[tells].Number != 0
	return err
}

// ask sends a command and returns the kind and the body of the answer.
func (c *conn) ask(kind int, body []byte) (answered int, answer []byte, err error) {
	if err := c.send(kind, body); err != nil {
		return 0, nil, err
	}
	for {
		answered, answer, err = c.receive()
		if err != nil || answered != ping {
			break
		}
		if err = c.send(pong, nil); err != nil {
			break
		}
	}
	if answered == authChallenge {
		err = fmt.Errorf("%w: the broker wants more than one step", auth.ErrAuthentication)
	}
	return answered, answer, err
}

// send writes a frame: its size, the size of the command, and the command, whose body has the
// number of its kind.
func (c *conn) send(kind int, body []byte) error {
	command := number(nil, 1, uint64(kind))
	command = text(command, protowire.Number(kind), body)
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(command)+4))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(command)))
	_, err := c.Write(append(frame, command...))
	return err
}

func (c *conn) receive() (kind int, body []byte, err error) {
	var sizes [8]byte
	if _, err := io.ReadFull(c, sizes[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(sizes[4:])
	if size > maxAnswer || binary.BigEndian.Uint32(sizes[:4]) != size+4 {
		return 0, nil, errors.New("the server does not use Pulsar's protocol")
	}
	command := make([]byte, size)
	if _, err := io.ReadFull(c, command); err != nil {
		return 0, nil, err
	}
	f, err := protofield.Fields(command)
	kind = int(f[1].Number)
	return kind, f[protowire.Number(kind)].Text, err
}

// refusal is what a command Error says.
func refusal(body []byte) error {
	const code, message = 2, 3
	f, err := protofield.Fields(body)
	if err != nil {
		return err
	}
	return explain(f[code].Number, f[message].Text)
}

// explain gives an error of the protocol its kind.
func explain(code uint64, message []byte) error {
	err := fmt.Errorf("the broker says %q", message)
	switch code {
	case authenticationError:
		return fmt.Errorf("%w: %w", auth.ErrAuthentication, err)
	case authorizationError:
		return fmt.Errorf("%w: %w", auth.ErrAuthorization, err)
	case topicNotFound:
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	default:
		return err
	}
}

func number(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func text(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}
