package ask

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/protofield"
)

// ErrNoNamespace says that the namespace of a topic does not exist.
var ErrNoNamespace = errors.New("the namespace does not exist")

const (
	lookup         = 23
	lookupResponse = 24
	// maxRedirects is how many brokers may send on to another one.
	maxRedirects = 10
)

// place is a broker's answer to a lookup: which broker serves a topic.
type place struct {
	address string
	// another says that address is to be asked again.
	another bool
	// through says that it is reached through the address that was asked.
	through bool
	// sure is handed on with the question.
	sure bool
}

// Serving finds the broker that serves topic, or would if there were one, and logs in there as a
// client does. It creates nothing.
func (b Broker) Serving(ctx context.Context, topic string) error {
	asked, sure := b, false
	for range maxRedirects {
		found, err := asked.lookup(ctx, topic, sure)
		switch {
		case err != nil:
			return err
		case found.through && !found.another:
			return nil
		}
		at := b
		at.Addresses = []string{found.address}
		if !found.another {
			if err := at.Connect(ctx); err != nil {
				return fmt.Errorf("the brokers say that %s serves it: %w", found.address, err)
			}
			return nil
		}
		if !found.through {
			asked = at
		}
		sure = found.sure
	}
	return errors.New("each broker says that another one serves the topic")
}

func (b Broker) lookup(ctx context.Context, topic string, sure bool) (place, error) {
	c, err := b.open(ctx)
	if err != nil {
		return place{}, err
	}
	defer c.close()
	const topicField, request, authoritative, listenerName = 1, 2, 3, 7
	body := text(nil, topicField, []byte(topic))
	body = number(body, request, 1)
	if sure {
		body = number(body, authoritative, 1)
	}
	if b.Listener != "" {
		body = text(body, listenerName, []byte(b.Listener))
	}
	kind, answer, err := c.ask(lookup, body)
	if err != nil {
		return place{}, err
	}
	if kind != lookupResponse {
		return place{}, refusal(answer)
	}
	return readPlace(answer, b.TLS != nil)
}

func readPlace(answer []byte, secured bool) (place, error) {
	const plain, overTLS, response, authoritative, code, message, proxied = 1, 2, 3, 5, 6, 7, 8
	const redirect, failed = 0, 2
	f, err := protofield.Fields(answer)
	if err != nil {
		return place{}, err
	}
	if f[response].Number == failed {
		text := string(f[message].Text)
		if strings.Contains(text, "Namespace not found") || strings.Contains(text, "Policies not found") {
			return place{}, ErrNoNamespace
		}
		return place{}, explain(f[code].Number, f[message].Text)
	}
	found := place{
		another: f[response].Number == redirect, through: f[proxied].Number != 0, sure: f[authoritative].Number != 0,
	}
	address := string(f[plain].Text)
	if secured {
		address = string(f[overTLS].Text)
	}
	if u, err := url.Parse(address); err == nil && u.Port() != "" {
		found.address = net.JoinHostPort(u.Hostname(), u.Port())
	} else if !found.through {
		return place{}, fmt.Errorf("the broker that serves the topic has no address to connect to, %q", address)
	}
	return found, nil
}
