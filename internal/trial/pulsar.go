package trial

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Pulsar tries a cluster whose section of the configuration is at path, and with it what then returns. end closes the client.
func Pulsar(path string, cfg messaging.Config, then func(*messaging.Client) []Trial) (t Trial, end func()) {
	t.Name = path + ".url " + cfg.URL
	cfg.ConnectTimeout = min(cfg.ConnectTimeout, Timeout)
	cfg.OperationTimeout = min(cfg.OperationTimeout, Timeout)
	client, err := messaging.Dial(context.Background(), cfg)
	if err != nil {
		t.Try = func(context.Context) error { return err }
		return t, func() {}
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
			return errors.New("the topic is terminated: it takes nothing any more")
		default:
			return unseen(ctx, client, topic, err)
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

// unseen makes a note of an error about a topic that cannot be tried before the service makes it. Whether there is its namespace the admin API tells.
func unseen(ctx context.Context, client *messaging.Client, topic string, err error) error {
	switch {
	case errors.Is(err, messaging.ErrTopicNotFound):
		if _, err := client.Topic(topic).Partitions(ctx); err != nil && strings.Contains(err.Error(), "Namespace not found") {
			return errors.New("its namespace does not exist")
		}
		return Note("does not exist yet; the first use creates it, if the broker allows that")
	case errors.Is(err, messaging.ErrNoAdminURL):
		return Note("not tried: without admin_url this broker, which is old, cannot tell whether the topic exists, and to try could create it")
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

// Namespace tries, over the admin API, whether a namespace has what a service needs, and why it does: needed says that nothing goes without deduplication.
// Who may not ask gets a note: the start does not need the answer.
func Namespace(client *messaging.Client, path, namespace string, needed bool, deduplication, retention string) []Trial {
	ns := client.Namespace(namespace)
	unknown := func(err error) error {
		if errors.Is(err, messaging.ErrAuthorization) {
			return Notef("not known: only an admin of the tenant may ask (%s)", Plain(err))
		}
		return err
	}
	return []Trial{
		{Name: path + " " + namespace + ", deduplication", Try: func(ctx context.Context) error {
			switch on, set, err := ns.Deduplication(ctx); {
			case err != nil:
				return unknown(err)
			case set && !on && needed:
				return errors.New("off: " + deduplication)
			case set && !on:
				return Note("off: " + deduplication)
			case !set:
				return Note("not set, the brokers' default holds: " + deduplication)
			}
			return nil
		}},
		{Name: path + " " + namespace + ", retention", Try: func(ctx context.Context) error {
			switch kept, set, err := ns.Retention(ctx); {
			case err != nil:
				return unknown(err)
			case !set || kept.Time == 0 || kept.Size == 0:
				return Note("not set: " + retention)
			}
			return nil
		}},
	}
}
