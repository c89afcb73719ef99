package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/pkg/backoff"
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

// filterBytes bounds the options as JSON, so that the job's record fits into the registry.
const filterBytes = store.MaxJobBytes / 2

func (o *RedriveOptions) check() error {
	if !(o.Rate >= 0 && o.Rate <= math.MaxFloat64) || o.Max < 0 { // NaN fails, too
		return fmt.Errorf("%w: rate and max must be 0 or more", ErrOptions)
	}
	if text, err := json.Marshal(o); err != nil || len(text) > filterBytes {
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
	if err := o.check(); err != nil {
		return Job{}, err
	}
	if s.Order == model.OrderLive {
		return Job{}, fmt.Errorf("%w: a live subscriber gets only events that arrive while it is connected: there is nothing to redrive", ErrOptions)
	}
	return p.begin(ctx, s, record{Job: Job{Kind: KindRedrive, DryRun: o.DryRun}, Redrive: &o})
}

// Discard begins a job that removes dead letters of a subscriber. Without a subscriber it removes
// those of the bus: this job belongs to this process alone, and ends with it.
func (p *Processor) Discard(ctx context.Context, bus, subscriber string, o RedriveOptions) (Job, error) {
	if err := o.check(); err != nil {
		return Job{}, err
	}
	key, topic, err := p.holder(bus, subscriber)
	if err != nil {
		return Job{}, err
	}
	job := Job{Kind: KindDiscard, DryRun: o.DryRun}
	if subscriber != "" {
		s, err := p.subscriber(bus, subscriber)
		if err != nil {
			return Job{}, err
		}
		return p.begin(ctx, s, record{Job: job, Discard: &o})
	}
	if err := p.jobs.reserve(key); err != nil {
		return Job{}, err
	}
	job.ID, job.Bus, job.State, job.Began, job.Instance = newJobID(), bus, JobRunning, time.Now(), p.instance
	j := newJob(record{Job: job})
	begun := j.now()
	return begun, p.launch(key, j, func(ctx context.Context) error { return p.discard(ctx, j, topic, o) }, func() {})
}

func (p *Processor) discard(ctx context.Context, j *job, topic string, o RedriveOptions) error {
	if err := p.keep(ctx, topic); err != nil {
		return err
	}
	return p.moveLetters(ctx, j, o, messaging.RedriveConfig{Topic: topic, Discard: true})
}

const (
	// busyFor is how long a job that was taken over waits until the brokers have dropped the
	// consumer of the process that ran it before.
	busyFor = 2 * time.Minute
	// endingFor is how long a new job waits for the job before it to end, which was canceled at
	// another instance.
	endingFor = 10 * time.Second
)

// moveLetters redrives or discards dead letters as cfg says, and counts them.
func (p *Processor) moveLetters(ctx context.Context, j *job, o RedriveOptions, cfg messaging.RedriveConfig) error {
	cfg.Subscription, cfg.Rate, cfg.Max, cfg.DryRun = model.DeliverSubscription, o.Rate, o.Max, o.DryRun
	before := j.now()
	moved := before.Published + before.Discarded // by those who had the job before; it reads all others again
	if o.Max > 0 {
		if cfg.Max -= int(moved); cfg.Max <= 0 {
			return nil
		}
	}
	cfg.Progress = func(r messaging.RedriveResult) {
		left := Left{TooLarge: int64(r.TooLarge), Foreign: int64(r.Foreign), Encrypted: int64(r.Encrypted), Truncated: int64(r.Truncated)}
		chosen := moved + int64(r.Redriven) + left.total()
		c := Counts{Read: chosen + int64(r.Filtered), Chosen: chosen, Published: before.Published, Discarded: before.Discarded, Left: left}
		switch {
		case o.DryRun:
		case cfg.Discard:
			c.Discarded += int64(r.Redriven)
		default:
			c.Published += int64(r.Redriven)
		}
		j.count(func(now *Counts) { *now = c })
	}
	cfg.Filter = func(d *messaging.DeadLetter) bool {
		return o.chooses(d) && !(j.resumed && d.FirstFailed.After(before.Began)) // FirstFailed after Began: it was sent before, and failed again
	}
	timeout := endingFor
	if j.resumed {
		timeout = busyFor
	}
	for since := time.Now(); ; {
		result, err := p.client.Redrive(ctx, cfg)
		if !errors.Is(err, messaging.ErrSubscriptionBusy) || result.Redriven > 0 || time.Since(since) > timeout {
			return err
		}
		backoff.Sleep(ctx, time.Second)
	}
}

func (p *Processor) redrive(ctx context.Context, j *job, s *model.Subscriber, o RedriveOptions) error {
	if err := p.keep(ctx, p.topics.DeadLetter(s)); err != nil {
		return err
	}
	if !o.DryRun {
		if err := p.keep(ctx, p.topics.Replay(s)); err != nil {
			return err
		}
		p.replaying(s)
	}
	return p.moveLetters(ctx, j, o, messaging.RedriveConfig{Topic: p.topics.DeadLetter(s), To: p.topics.Replay(s)})
}
