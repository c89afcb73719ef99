package processor

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// RedriveOptions choose dead letters. The zero value chooses all.
type RedriveOptions struct {
	// Reason is a part of the reason why a dead letter was given up.
	Reason string `json:"reason,omitempty"`
	// Type is the type of the event.
	Type string `json:"type,omitempty"`
	// From and To bound when the first attempt failed: From <= t < To. Zero: no bound.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// Rate bounds how many go back in a second, Max how many in all. 0: no bound.
	Rate float64 `json:"rate,omitempty"`
	Max  int     `json:"max,omitempty"`
	// DryRun only counts.
	DryRun bool `json:"dry_run,omitempty"`
}

func (o *RedriveOptions) check() error {
	if !(o.Rate >= 0 && o.Rate <= math.MaxFloat64) || o.Max < 0 { // NaN is not
		return fmt.Errorf("%w: rate and max must be 0 or more", ErrOptions)
	}
	return nil
}

// chooses reports whether a dead letter is to go back.
func (o *RedriveOptions) chooses(d *messaging.DeadLetter) bool {
	if !strings.Contains(d.Reason, o.Reason) || !o.From.IsZero() && d.FirstFailed.Before(o.From) || !o.To.IsZero() && !d.FirstFailed.Before(o.To) {
		return false
	}
	if o.Type == "" {
		return true
	}
	e, err := event.Decode(d.Payload)
	return err == nil && e.Type == o.Type
}

// Redrive begins a job that sends dead letters of a subscriber to it again, with all their attempts: by way of the
// topic of replays, since the send topic of an ordered subscriber is written by engines alone. What fails again is a
// dead letter again.
func (p *Processor) Redrive(bus, subscriber string, o RedriveOptions) (Job, error) {
	_, s, err := p.subscriber(bus, subscriber)
	if err != nil {
		return Job{}, err
	}
	if err := o.check(); err != nil {
		return Job{}, err
	}
	if s.Order == registry.OrderLive {
		return Job{}, fmt.Errorf("%w: a live subscriber gets what comes while it is connected, and no redrive", ErrOptions)
	}
	about := Job{Kind: KindRedrive, Bus: bus, Subscriber: subscriber, DryRun: o.DryRun}
	return p.jobs.start(s.UID, about, func(ctx context.Context, j *job) error {
		return p.redrive(ctx, j, s, o)
	})
}

// Discard begins a job that removes dead letters of a subscriber, or, without one, of the bus.
func (p *Processor) Discard(bus, subscriber string, o RedriveOptions) (Job, error) {
	key, topic, err := p.holder(bus, subscriber)
	if err == nil {
		err = o.check()
	}
	if err != nil {
		return Job{}, err
	}
	about := Job{Kind: KindDiscard, Bus: bus, Subscriber: subscriber, DryRun: o.DryRun}
	return p.jobs.start(key, about, func(ctx context.Context, j *job) error {
		if err := p.keep(ctx, topic); err != nil {
			return err
		}
		result, err := p.client.Redrive(ctx, messaging.RedriveConfig{
			Topic: topic, Subscription: registry.DeliverSubscription, Discard: true, Rate: o.Rate, Max: o.Max, DryRun: o.DryRun, Filter: o.filter(j),
		})
		if !o.DryRun {
			j.discarded.Store(int64(result.Redriven))
		}
		return err
	})
}

// filter counts what is looked at, and what is chosen.
func (o *RedriveOptions) filter(j *job) func(*messaging.DeadLetter) bool {
	return func(d *messaging.DeadLetter) bool {
		j.read.Add(1)
		if !o.chooses(d) {
			return false
		}
		j.chosen.Add(1)
		return true
	}
}

func (p *Processor) redrive(ctx context.Context, j *job, s *registry.Subscriber, o RedriveOptions) error {
	if err := p.keep(ctx, p.topics.DeadLetter(s)); err != nil {
		return err
	}
	if !o.DryRun {
		if err := p.keep(ctx, p.topics.Replay(s)); err != nil {
			return err
		}
		p.replaying(s)
	}
	topics := p.topics
	result, err := p.client.Redrive(ctx, messaging.RedriveConfig{
		Topic: topics.DeadLetter(s), Subscription: registry.DeliverSubscription, To: topics.Replay(s),
		Rate: o.Rate, Max: o.Max, DryRun: o.DryRun, Filter: o.filter(j),
	})
	if !o.DryRun {
		j.published.Store(int64(result.Redriven))
	}
	return err
}
