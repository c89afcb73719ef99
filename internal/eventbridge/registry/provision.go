package registry

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Pulsar is the [Provisioner] of a cluster. With the admin API it makes topics with their partitions, and removes them. Without,
// brokers make topics when first used, which a cluster has to allow, with one partition; nothing is removed then.
type Pulsar struct {
	client *messaging.Client
	topics Topics
	admin  bool
}

// NewPulsar makes one. admin says that client has the address of the admin API.
func NewPulsar(client *messaging.Client, topics Topics, admin bool) *Pulsar {
	return &Pulsar{client: client, topics: topics, admin: admin}
}

// MakeBus makes the topic on which events come in, and the engine's subscription, which keeps them from the first on.
func (p *Pulsar) MakeBus(ctx context.Context, b *Bus) error {
	err := p.keep(ctx, p.topics.Events(b.Name), b.Partitions, EngineSubscription)
	if errors.Is(err, errPartitions) {
		return &Invalid{Faults: []Fault{{Pointer: "/partitions", Problem: err.Error()}}}
	}
	return err
}

// MakeSubscriber makes the topic of what the subscriber is to get, and the subscription that keeps it from the first match on;
// with the admin API also the topics of retries and dead letters. Only an ordered subscriber's has the bus' partitions. A live
// subscriber has none but the first, and no subscription.
func (p *Pulsar) MakeSubscriber(ctx context.Context, b *Bus, s *Subscriber) error {
	if s.Order == OrderLive {
		return p.create(ctx, p.topics.Send(s), 1)
	}
	if err := p.CheckOrder(ctx, s.Order); err != nil {
		return err
	}
	partitions := 1 // each one costs every engine a producer and every processor a consumer
	if s.Order.Ordered() {
		partitions = b.Partitions
	}
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return p.keep(ctx, p.topics.Send(s), partitions, DeliverSubscription) })
	if p.admin {
		all.Go(func() error { return p.keep(ctx, p.topics.DeadLetter(s), 1, DeliverSubscription) })
		if s.Order == OrderNone {
			all.Go(func() error { return p.keep(ctx, p.topics.Retry(s), 1, DeliverSubscription) })
		}
	}
	return all.Wait()
}

// CheckOrder refuses an order that the namespace cannot keep: without deduplication the broker may store a match twice, or late.
func (p *Pulsar) CheckOrder(ctx context.Context, o Order) error {
	if !o.Ordered() || !p.admin {
		return nil
	}
	on, set, err := p.client.Namespace(p.topics.Namespace).Deduplication(ctx)
	if err == nil && set && !on {
		return &Invalid{Faults: []Fault{{Pointer: "/order", Problem: fmt.Sprintf(
			"must be none or live: %s takes deduplication, which is off in the namespace %s: switch it on", o, p.topics.Namespace)}}}
	}
	return nil // where it cannot be found out, a line of the log says so at the start
}

// errPartitions: a topic is there with other partitions.
var errPartitions = errors.New("the topic")

// create makes a topic. One partition is a topic without partitions, as brokers make it.
func (p *Pulsar) create(ctx context.Context, topic string, partitions int) error {
	if partitions == 1 {
		partitions = 0
	}
	if !p.admin {
		found, err := p.client.Partitions(ctx, topic)
		if err == nil && len(found) > 1 {
			err = fmt.Errorf("%w %s has %d partitions already, or the brokers make topics so: without pulsar.admin_url there can be only 1", errPartitions, topic, len(found))
		}
		return err
	}
	err := p.client.Topic(topic).Create(ctx, partitions)
	if errors.Is(err, messaging.ErrExists) {
		return fmt.Errorf("%w %s is there already with another number of partitions: choose that, or delete the topic", errPartitions, topic)
	}
	return err
}

// keep makes a topic and a subscription of it that begins with the first message.
func (p *Pulsar) keep(ctx context.Context, topic string, partitions int, subscription string) error {
	if err := p.create(ctx, topic, partitions); err != nil {
		return err
	}
	if !p.admin {
		return p.client.EnsureSubscription(ctx, topic, subscription, messaging.StartEarliest)
	}
	err := p.client.Topic(topic).Subscription(subscription).Create(ctx, messaging.Earliest())
	if errors.Is(err, messaging.ErrExists) {
		return nil
	}
	return err
}

// RemoveBus deletes the topic of events, and that of those that could not be matched, with all that is in them.
func (p *Pulsar) RemoveBus(ctx context.Context, bus string) error {
	return errors.Join(p.remove(ctx, p.topics.Events(bus)), p.remove(ctx, p.topics.Unmatched(bus)))
}

// RemoveSubscriber deletes the topics of a subscriber with all that is in them.
func (p *Pulsar) RemoveSubscriber(ctx context.Context, bus, name, uid string) (err error) {
	s := &Subscriber{Bus: bus, Name: name, UID: uid}
	for _, topic := range []string{p.topics.Send(s), p.topics.Retry(s), p.topics.DeadLetter(s), p.topics.Replay(s)} {
		err = errors.Join(err, p.remove(ctx, topic))
	}
	return err
}

func (p *Pulsar) remove(ctx context.Context, topic string) error {
	if !p.admin {
		return nil
	}
	switch err := p.client.Topic(topic).Delete(ctx); {
	case err == nil, errors.Is(err, messaging.ErrNotFound):
		return nil
	case errors.Is(err, messaging.ErrBusy):
		return fmt.Errorf("%w: the topic %s of what was deleted under this name: try again in a minute", ErrInUse, topic)
	default:
		return err
	}
}
