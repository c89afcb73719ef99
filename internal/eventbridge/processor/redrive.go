package processor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
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

// filterBytes bounds the filter as JSON: it has to fit into what the registry keeps of a job.
const filterBytes = registry.MaxJobBytes / 2

func (o *RedriveOptions) check() error {
	if !(o.Rate >= 0 && o.Rate <= math.MaxFloat64) || o.Max < 0 { // NaN is not
		return fmt.Errorf("%w: rate and max must be 0 or more", ErrOptions)
	}
	if text, err := json.Marshal(o); err != nil || len(text) > filterBytes {
		return fmt.Errorf("%w: reason and type are too long, or a time is not valid", ErrOptions)
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
func (p *Processor) Redrive(ctx context.Context, bus, subscriber string, o RedriveOptions) (Job, error) {
	s, err := p.subscriber(bus, subscriber)
	if err != nil {
		return Job{}, err
	}
	if err := o.check(); err != nil {
		return Job{}, err
	}
	if s.Order == registry.OrderLive {
		return Job{}, fmt.Errorf("%w: a live subscriber gets what comes while it is connected, and no redrive", ErrOptions)
	}
	return p.begin(ctx, s, record{Job: Job{Kind: KindRedrive, DryRun: o.DryRun}, Redrive: &o})
}

// Discard begins a job that removes dead letters of a subscriber, or, without one, of the bus: then it is this process' alone, and ends with it.
func (p *Processor) Discard(ctx context.Context, bus, subscriber string, o RedriveOptions) (Job, error) {
	if err := o.check(); err != nil {
		return Job{}, err
	}
	key, topic, err := p.holder(bus, subscriber)
	if err != nil {
		return Job{}, err
	}
	about := Job{Kind: KindDiscard, DryRun: o.DryRun}
	if subscriber != "" {
		s, err := p.subscriber(bus, subscriber)
		if err != nil {
			return Job{}, err
		}
		return p.begin(ctx, s, record{Job: about, Discard: &o})
	}
	if err := p.jobs.reserve(key); err != nil {
		return Job{}, err
	}
	about.ID, about.Bus, about.State, about.Began, about.Instance = newJobID(), bus, JobRunning, time.Now(), p.instance
	j := newJob(record{Job: about})
	begun := j.now()
	return begun, p.launch(key, j, func(ctx context.Context) error { return p.discard(ctx, j, topic, o) }, func() {})
}

func (p *Processor) discard(ctx context.Context, j *job, topic string, o RedriveOptions) error {
	if err := p.keep(ctx, topic); err != nil {
		return err
	}
	return p.moveLetters(ctx, j, o, &j.discarded, messaging.RedriveConfig{Topic: topic, Discard: true})
}

const (
	// busyFor is for how long a job that goes on waits for the process that ran it to be forgotten by the brokers.
	busyFor = 2 * time.Minute
	// endingFor is for how long a new one waits for the job before it, which was ended at another instance, to end there.
	endingFor = 10 * time.Second
)

// moveLetters does with dead letters what cfg says, and counts in moved.
func (p *Processor) moveLetters(ctx context.Context, j *job, o RedriveOptions, moved *atomic.Int64, cfg messaging.RedriveConfig) error {
	cfg.Subscription, cfg.Rate, cfg.Max, cfg.DryRun = registry.DeliverSubscription, o.Rate, o.Max, o.DryRun
	if o.Max > 0 {
		if cfg.Max -= int(moved.Load()); cfg.Max <= 0 {
			return nil
		}
	}
	if j.resumed && o.DryRun { // it begins anew: nothing says how far it was
		j.read.Store(0)
		j.chosen.Store(0)
	}
	began := j.now().Began
	cfg.Stored = func(n int) { moved.Add(int64(n)) }
	cfg.Filter = func(d *messaging.DeadLetter) bool {
		j.read.Add(1)
		if !o.chooses(d) || j.resumed && d.FirstFailed.After(began) { // the latter went back before, and failed again
			return false
		}
		j.chosen.Add(1)
		return true
	}
	patience := endingFor
	if j.resumed {
		patience = busyFor
	}
	for since := time.Now(); ; {
		result, err := p.client.Redrive(ctx, cfg)
		if !errors.Is(err, messaging.ErrSubscriptionBusy) || result.Redriven > 0 || time.Since(since) > patience {
			return err
		}
		sleep(ctx, time.Second)
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
	return p.moveLetters(ctx, j, o, &j.published, messaging.RedriveConfig{Topic: p.topics.DeadLetter(s), To: p.topics.Replay(s)})
}
