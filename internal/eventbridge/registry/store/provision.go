package store

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Pulsar is the [Provisioner] of a Pulsar cluster. With the admin API it creates topics with their
// partitions, and removes them. Without the admin API, brokers create topics on first use, with one
// partition, and nothing removes them. The cluster must allow brokers to do so.
type Pulsar struct {
	client *messaging.Client
	topics model.Topics
	admin  bool
}

// NewPulsar returns a provisioner. admin says that client has the address of the admin API.
func NewPulsar(client *messaging.Client, topics model.Topics, admin bool) *Pulsar {
	return &Pulsar{client: client, topics: topics, admin: admin}
}

// MakeBus creates the topic of incoming events, and the engine's subscription, which keeps events
// from the first one on. With the admin API it also creates the topic of the bus' dead letters.
func (p *Pulsar) MakeBus(ctx context.Context, b *model.Bus) error {
	err := p.keep(ctx, p.topics.Events(b.Name), b.Partitions, model.EngineSubscription)
	if errors.Is(err, errPartitions) {
		return &model.Invalid{Faults: []model.Fault{{Pointer: "/partitions", Problem: err.Error()}}}
	}
	if err == nil && p.admin {
		err = p.keep(ctx, p.topics.BusDeadLetter(b.Name), 1, model.DeliverSubscription)
		if errors.Is(err, errPartitions) { // brokers have created it, and may create topics with partitions
			return nil
		}
	}
	return err
}

// MakeSubscriber creates the subscriber's send topic, and the subscription that keeps its copies
// from the first match on. With the admin API it also creates the topics of dead letters and,
// without an order, of retries. The send topic of an ordered subscriber has as many partitions as
// the bus; each other topic has one.
func (p *Pulsar) MakeSubscriber(ctx context.Context, b *model.Bus, s *model.Subscriber) error {
	if err := p.CheckOrder(ctx, s.Order); err != nil {
		return err
	}
	partitions := 1 // each one costs every engine a producer and every processor a consumer
	if s.Order.Ordered() {
		partitions = b.Partitions
	}
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return p.keep(ctx, p.topics.Send(s), partitions, model.DeliverSubscription) })
	if p.admin {
		all.Go(func() error { return p.keep(ctx, p.topics.DeadLetter(s), 1, model.DeliverSubscription) })
		if s.Order == model.OrderNone {
			all.Go(func() error { return p.keep(ctx, p.topics.Retry(s), 1, model.DeliverSubscription) })
		}
	}
	return all.Wait()
}

// CheckOrder refuses an order that the namespace cannot keep. Without deduplication the broker may
// store a copy twice, or late.
func (p *Pulsar) CheckOrder(ctx context.Context, o model.Order) error {
	if !o.Ordered() || !p.admin {
		return nil
	}
	on, set, err := p.client.Namespace(p.topics.Namespace).Deduplication(ctx)
	if err == nil && set && !on {
		return &model.Invalid{Faults: []model.Fault{{Pointer: "/order", Problem: fmt.Sprintf(
			"must be none: %s needs deduplication, which is off in the namespace %s: switch it on", o, p.topics.Namespace)}}}
	}
	return nil // if the setting is not known, the start and -config.connect say so
}

// errPartitions: a topic exists with another number of partitions.
var errPartitions = errors.New("the topic")

// create creates a topic. With one partition it creates a topic without partitions, as brokers do.
func (p *Pulsar) create(ctx context.Context, topic string, partitions int) error {
	if partitions == 1 {
		partitions = 0
	}
	if !p.admin {
		found, err := p.client.Partitions(ctx, topic)
		if err == nil && len(found) > 1 {
			err = fmt.Errorf("%w %s has %d partitions already, or the brokers create topics with partitions: without pulsar.admin_url it must have 1", errPartitions, topic, len(found))
		}
		return err
	}
	err := p.client.Topic(topic).Create(ctx, partitions)
	if errors.Is(err, messaging.ErrExists) {
		return fmt.Errorf("%w %s exists already with another number of partitions: use that number, or delete the topic", errPartitions, topic)
	}
	return err
}

// keep creates a topic and a subscription of it that begins with the first message.
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

// RemoveBus deletes the topic of the bus' events and the topic of its unmatched events, with all
// their messages.
func (p *Pulsar) RemoveBus(ctx context.Context, bus string) error {
	return errors.Join(p.remove(ctx, p.topics.Events(bus)), p.remove(ctx, p.topics.BusDeadLetter(bus)))
}

// RemoveSubscriber deletes all topics of a subscriber, with all their messages.
func (p *Pulsar) RemoveSubscriber(ctx context.Context, bus, name, uid string) (err error) {
	s := &model.Subscriber{Bus: bus, Name: name, UID: uid}
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
		return fmt.Errorf("%w: the topic %s of a deleted object with this name still exists: try again in a minute", model.ErrInUse, topic)
	default:
		return err
	}
}
