package trial

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Pulsar tries a cluster whose section of the configuration is at path, and with it what then
// returns. end closes the client.
func Pulsar(path string, cfg messaging.Config, then func(*messaging.Client) []Trial) (t Trial, end func()) {
	t.Name = path + ".url " + cfg.URL
	cfg.ConnectTimeout = min(cfg.ConnectTimeout, Timeout)
	cfg.OperationTimeout = min(cfg.OperationTimeout, Timeout)
	client, err := messaging.Dial(context.Background(), cfg)
	if err != nil {
		return Of(t.Name, err), func() {}
	}
	t.Try = client.TryConnect
	t.Then = then(client)
	return t, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = client.Close(ctx) // the process ends
	}
}

// Publish tries a topic that is published to.
func Publish(client *messaging.Client, path, topic string) Trial {
	return Trial{Name: path + " " + topic, Try: func(ctx context.Context) error {
		err := client.TryPublish(ctx, topic)
		switch {
		case errors.Is(err, messaging.ErrAuthorization):
			return fmt.Errorf("this role may not produce there: %w", err)
		case errors.Is(err, messaging.ErrOwned):
			return Note("this role may produce there; another publisher, such as a service that runs, has the topic to itself now")
		case errors.Is(err, messaging.ErrTopicTerminated):
			return errors.New("the topic is terminated: it accepts no more messages")
		default:
			if err = unseen(ctx, client, topic, err); errors.Is(err, errNoNamespace) {
				return fmt.Errorf("%w; -setup creates it", err)
			}
			return err
		}
	}}
}

// Consume tries a topic that is consumed from.
func Consume(client *messaging.Client, path, topic string) Trial {
	return Trial{Name: path + " " + topic, Try: func(ctx context.Context) error {
		err := client.TryConsume(ctx, topic)
		if errors.Is(err, messaging.ErrAuthorization) {
			return fmt.Errorf("this role may not consume from there: %w", err)
		}
		return unseen(ctx, client, topic, err)
	}}
}

var errNoNamespace = errors.New("its namespace does not exist")

// unseen makes a note of an error about a topic that cannot be tried before the service makes it.
func unseen(ctx context.Context, client *messaging.Client, topic string, err error) error {
	switch {
	case errors.Is(err, messaging.ErrNamespaceNotFound):
		return errNoNamespace
	case errors.Is(err, messaging.ErrTopicNotFound): // of an old broker by its admin API, which tells the rest
		if _, err := client.Topic(topic).Partitions(ctx); err != nil && strings.Contains(err.Error(), "Namespace not found") {
			return errNoNamespace
		}
		return Note("does not exist yet; the first use creates it, if the broker allows that")
	case errors.Is(err, messaging.ErrNoAdminURL):
		return Note("not tried: this broker is too old to tell without admin_url whether the topic exists, and trying could create it")
	default:
		return err
	}
}

// Admin tries the address of the admin API by asking about a topic, when there is an address.
func Admin(client *messaging.Client, path, adminURL, topic string) []Trial {
	if adminURL == "" {
		return nil
	}
	return []Trial{{Name: path + ".admin_url " + adminURL, Try: func(ctx context.Context) error {
		_, err := client.Topic(topic).Exists(ctx)
		return err
	}}}
}

// Namespace makes the trials of one namespace over the admin API.
type Namespace struct {
	path, name string
	ns         messaging.Namespace

	// Two trials need the retention. The first of them asks for it.
	ask       sync.Once
	retention messaging.Retention
	set       bool
	err       error
}

// NewNamespace returns the trials of a namespace, whose name the configuration has at path.
func NewNamespace(client *messaging.Client, path, name string) *Namespace {
	return &Namespace{path: path, name: name, ns: client.Namespace(name)}
}

// Policies tries whether the namespace has what a service needs, and why it does: needed says that
// nothing goes without deduplication.
func (n *Namespace) Policies(needed bool, deduplication, retention string) []Trial {
	return []Trial{
		{Name: n.path + " " + n.name + ", deduplication", Try: func(ctx context.Context) error {
			return TryDeduplication(ctx, n.ns, needed, deduplication)
		}},
		{Name: n.path + " " + n.name + ", retention", Try: func(ctx context.Context) error {
			switch kept, set, err := n.askRetention(ctx); {
			case err != nil:
				return unknown(err)
			case !set || kept.Time == 0 || kept.Size == 0:
				return Note("not set: " + retention)
			}
			return nil
		}},
	}
}

// TenantAdmin tries whether the role is an admin of the namespace's tenant, which may make topics.
func (n *Namespace) TenantAdmin() Trial {
	return Trial{Name: n.path + " " + n.name + ", admin", Try: func(ctx context.Context) error {
		_, _, err := n.askRetention(ctx)
		if errors.Is(err, messaging.ErrAuthorization) {
			return fmt.Errorf("with admin_url the service makes topics, and only an admin of the tenant may: this role is not one (%s)", Plain(err))
		}
		return nil // other trials report other errors
	}}
}

func (n *Namespace) askRetention(ctx context.Context) (kept messaging.Retention, set bool, err error) {
	n.ask.Do(func() { n.retention, n.set, n.err = n.ns.Retention(ctx) })
	return n.retention, n.set, n.err
}

// TryDeduplication returns nil for a namespace that has deduplication on, and otherwise why it
// should: an error where nothing goes without it, else a note.
func TryDeduplication(ctx context.Context, ns messaging.Namespace, needed bool, why string) error {
	switch on, set, err := ns.Deduplication(ctx); {
	case err != nil:
		return unknown(err)
	case set && !on && needed:
		return errors.New("off: " + why)
	case set && !on:
		return Note("off: " + why)
	case !set:
		return Note("not set at the namespace, the brokers' default applies: " + why)
	}
	return nil
}

// unknown makes a note of it that the role may not ask: the answer is not needed to go on.
func unknown(err error) error {
	if errors.Is(err, messaging.ErrAuthorization) {
		return Notef("not known: only an admin of the tenant may ask (%s)", Plain(err))
	}
	return err
}
