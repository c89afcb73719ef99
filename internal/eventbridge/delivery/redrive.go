package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// RedriveOptions select dead letters. The zero value selects all.
type RedriveOptions struct {
	// Reason is a part of the reason for which a dead letter was given up. Empty: any reason.
	Reason string `json:"reason,omitempty"`
	// Type is the type of the event. Empty: any type.
	Type string `json:"type,omitempty"`
	// From and To bound the time of the first failed attempt: From <= t < To. Zero: no bound.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// Rate bounds how many dead letters are sent per second, Max how many in all. 0: no bound.
	Rate float64 `json:"rate,omitempty"`
	Max  int     `json:"max,omitempty"`
	// DryRun makes the job only count.
	DryRun bool `json:"dry_run,omitempty"`
}

// optionsBytes bounds the options as JSON, so that the job fits into the registry.
const optionsBytes = store.MaxJobBytes / 2

func (o *RedriveOptions) check() error {
	if !(o.Rate >= 0 && o.Rate <= math.MaxFloat64) || o.Max < 0 { // NaN fails, too
		return fmt.Errorf("%w: rate and max must be 0 or more", ErrOptions)
	}
	if text, err := json.Marshal(o); err != nil || len(text) > optionsBytes {
		return fmt.Errorf("%w: reason and type are too long, or a time is not valid", ErrOptions)
	}
	return nil
}

// chooses reports whether the options select a dead letter.
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

// Redrive begins a job that sends dead letters of a subscriber to it again. Each has its full
// number of attempts again, and if it fails it becomes a dead letter again. The job publishes to
// the topic of replays: only engines may publish to the send topic of an ordered subscriber.
func (p *Processor) Redrive(ctx context.Context, bus, subscriber string, o RedriveOptions) (Job, error) {
	s, err := p.subscriber(bus, subscriber)
	if err != nil {
		return Job{}, err
	}
	return p.moveDeadLetters(ctx, s, KindRedrive, o, messaging.RedriveConfig{Topic: p.topics.DeadLetter(s), To: p.topics.Replay(s)})
}

// Discard begins a job that removes dead letters of a subscriber. Without a subscriber it removes
// those of the bus: this job is known to this process alone.
func (p *Processor) Discard(ctx context.Context, bus, subscriber string, o RedriveOptions) (Job, error) {
	s, topic, err := p.holder(bus, subscriber)
	if err != nil {
		return Job{}, err
	}
	return p.moveDeadLetters(ctx, s, KindDiscard, o, messaging.RedriveConfig{Topic: topic, Discard: true})
}

// moveDeadLetters begins a job that redrives or discards dead letters as cfg says, and counts them.
func (p *Processor) moveDeadLetters(
	ctx context.Context, s *model.Subscriber, kind string, o RedriveOptions, cfg messaging.RedriveConfig,
) (Job, error) {
	if err := o.check(); err != nil {
		return Job{}, err
	}
	cfg.Subscription, cfg.Filter, cfg.Rate, cfg.Max, cfg.DryRun = model.DeliverSubscription, o.chooses, o.Rate, o.Max, o.DryRun
	return p.begin(ctx, s, Job{Kind: kind, DryRun: o.DryRun}, o, func(ctx context.Context, j *job) error {
		if err := p.keep(ctx, cfg.Topic); err != nil {
			return err
		}
		cfg.Progress = func(r messaging.RedriveResult) {
			left := Left{TooLarge: int64(r.TooLarge), Foreign: int64(r.Foreign), Encrypted: int64(r.Encrypted), Truncated: int64(r.Truncated)}
			c := Counts{Chosen: int64(r.Redriven) + left.total(), Left: left}
			c.Read = c.Chosen + int64(r.Filtered)
			switch {
			case o.DryRun:
			case cfg.Discard:
				c.Discarded = int64(r.Redriven)
			default:
				c.Published = int64(r.Redriven)
			}
			j.change(func(now *Job) { now.Counts = c })
		}
		_, err := p.client.Redrive(ctx, cfg)
		return err
	})
}
