package delivery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/eventpattern"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// ReplayOptions select past events.
type ReplayOptions struct {
	// From and To bound the time when an event was stored, by the clock of the process that
	// accepted it: From <= t < To. A zero From is the oldest event that the bus' topic keeps, a
	// zero To the beginning of the job.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// Rate bounds events per second. 0: no bound.
	Rate float64 `json:"rate,omitempty"`
	// DryRun makes the job only count.
	DryRun bool `json:"dry_run,omitempty"`
}

// clocksApart is how far the clocks of the processes that accept events may differ: publish times
// in a partition do not always ascend.
const clocksApart = time.Minute

// Replay begins a job that matches past events of the bus against the subscriber's current rules,
// and publishes the matching ones to its topic of replays. Duplicates that engines dropped, because
// they came within the bus' window, are replayed.
func (p *Processor) Replay(ctx context.Context, bus, subscriber string, o ReplayOptions) (Job, error) {
	s, err := p.subscriber(bus, subscriber)
	if err != nil {
		return Job{}, err
	}
	now := time.Now()
	toEnd := o.To.IsZero() || o.To.After(now)
	switch {
	case o.Rate < 0:
		return Job{}, fmt.Errorf("%w: rate must be 0 or more", ErrOptions)
	case toEnd && !o.From.Before(now), !toEnd && !o.From.Before(o.To):
		return Job{}, fmt.Errorf("%w: from must be before to", ErrOptions)
	}
	return p.begin(ctx, s, Job{Kind: KindReplay, DryRun: o.DryRun}, o, func(ctx context.Context, j *job) error {
		return p.replay(ctx, j, s, o, toEnd)
	})
}

// startOverlap is how long engines usually take to see a new subscriber.
const startOverlap = 5 * time.Second

// Start begins the replay that gives a new subscriber the events before it, from its start on. The
// process that has created the subscriber calls it once. began is false if there is nothing to
// replay: start is latest, or in the future. The subscriber may get an event twice if it arrives
// before all engines have seen the subscriber, or before the replay has read that far.
func (p *Processor) Start(ctx context.Context, bus, subscriber string) (j Job, began bool, err error) {
	s, err := p.subscriber(bus, subscriber)
	if err != nil || s.Start == "" || s.Start == "latest" {
		return Job{}, false, err
	}
	var o ReplayOptions
	if s.Start != "earliest" {
		if o.From, err = time.Parse(time.RFC3339, s.Start); err != nil {
			return Job{}, false, fmt.Errorf("start: %w", err)
		}
	}
	if !o.From.Before(s.Created.Add(startOverlap)) {
		return Job{}, false, nil // start is in the future: engines match what comes
	}
	j, err = p.begin(ctx, s, Job{Kind: KindReplay}, o, func(ctx context.Context, j *job) error {
		if err := p.awaitEngines(ctx, s.Revision); err != nil {
			return err
		}
		return p.replay(ctx, j, s, o, true)
	})
	return j, err == nil, err
}

// awaitEngines waits until all engines match by a revision or a later one. Engines with an older
// revision store no copies for the subscriber: their events must be in the topic when the replay
// reads it. Engines that are unavailable match by a later revision when they come back.
func (p *Processor) awaitEngines(ctx context.Context, revision int64) error {
	for ctx.Err() == nil {
		if active, _ := p.instances.Active(revision); active && p.complete(p.instances.Instances()) {
			return nil
		}
		backoff.Sleep(ctx, 100*time.Millisecond)
	}
	return ctx.Err()
}

// replay is the state of one replay job.
type replay struct {
	*job
	sub        *model.Subscriber
	options    ReplayOptions
	toEnd      bool // all that the topic holds, whatever the clocks of publishers say
	index      *eventpattern.Index[int]
	scratch    eventpattern.Scratch
	matched    []int
	limit      *rate.Limiter
	out        *messaging.Publisher    // nil in a dry run
	fail       context.CancelCauseFunc // ends the replay: a copy was not stored
	passed     map[int]bool            // partitions that have been read up to To
	partitions int
}

var errReplayed = errors.New("all is read")

func newReplay(j *job, s *model.Subscriber, o ReplayOptions, toEnd bool) *replay {
	r := &replay{
		job: j, sub: s, options: o, toEnd: toEnd, index: eventpattern.NewIndex[int](),
		limit: rate.NewLimiter(rate.Inf, 1), passed: make(map[int]bool),
	}
	if o.Rate > 0 {
		r.limit = rate.NewLimiter(rate.Limit(o.Rate), 1)
	}
	for i, rule := range s.Rules {
		r.index.Set(i, rule.Compiled())
	}
	return r
}

// replay publishes copies of the events that the options select and the subscriber's rules match.
func (p *Processor) replay(ctx context.Context, j *job, s *model.Subscriber, o ReplayOptions, toEnd bool) (err error) {
	r := newReplay(j, s, o, toEnd)
	ctx, r.fail = context.WithCancelCause(ctx)
	defer r.fail(nil)
	if !o.DryRun {
		profile := messaging.Business()
		profile.Name, profile.Compression, profile.MaxPendingRecords = "eventbridge_replay", messaging.NoCompression, 1000
		if r.out, err = p.client.Publisher(ctx, p.topics.Replay(s), profile); err != nil {
			return err
		}
		defer p.close(ctx, r.out)
	}
	events := p.topics.Events(s.Bus)
	partitions, err := p.client.Partitions(ctx, events)
	if err != nil {
		return err
	}
	r.partitions = len(partitions)
	from := messaging.Earliest()
	if !o.From.IsZero() {
		from = messaging.AtTime(o.From.Add(-clocksApart))
	}
	reader, err := p.client.Reader(ctx, messaging.ReaderConfig{
		Topic: events, Name: "eventbridge_replay", From: &from, PrefetchBytes: 4 << 20, MaxMessageBytes: 16 << 10,
	})
	if err != nil {
		return err
	}
	defer p.close(ctx, reader)
	_, err = reader.ReadToEnd(ctx, r.take)
	if r.out != nil && (err == nil || errors.Is(err, errReplayed)) {
		err = r.out.Flush(ctx)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, errReplayed):
		return nil
	default:
		return err
	}
}

// take publishes a copy of one event if it matches.
func (r *replay) take(ctx context.Context, d *messaging.Delivery) error {
	if !r.toEnd && !d.PublishTime.Before(r.options.To) {
		if d.PublishTime.After(r.options.To.Add(clocksApart)) {
			if r.passed[d.Partition] = true; len(r.passed) == r.partitions {
				return errReplayed
			}
		}
		return nil
	}
	if d.PublishTime.Before(r.options.From) {
		return nil
	}
	r.change(func(now *Job) { now.Read++ })
	var err error
	r.matched, err = r.index.Match(&r.scratch, r.matched[:0], d.Payload)
	if err == nil && len(r.matched) == 0 {
		return nil
	}
	var e event.Event
	if err == nil {
		e, err = event.Decode(d.Payload)
	}
	if err != nil {
		r.change(func(now *Job) { now.Chosen, now.Left.Foreign = now.Chosen+1, now.Left.Foreign+1 })
		return nil //nolint:nilerr // engines have made it a dead letter of the bus
	}
	if r.out == nil {
		r.change(func(now *Job) { now.Chosen++ })
		return nil
	}
	if err := r.limit.Wait(ctx); err != nil {
		return err
	}
	r.out.PublishAsync(ctx, r.copyOf(d, e), func(_ messaging.MessageID, err error) {
		switch {
		case err == nil:
			r.change(func(now *Job) { now.Chosen, now.Published = now.Chosen+1, now.Published+1 })
		case errors.Is(err, messaging.ErrTooLarge): // as an error, it would end each replay here
			r.change(func(now *Job) { now.Chosen, now.Left.TooLarge = now.Chosen+1, now.Left.TooLarge+1 })
		default:
			r.fail(err)
		}
	})
	return nil
}

func (r *replay) copyOf(d *messaging.Delivery, e event.Event) *messaging.Record {
	properties := make(map[string]string, 2)
	model.CopyProperties(properties, d.Properties)
	return &messaging.Record{Key: e.PartitionKey, Payload: d.Payload, EventTime: d.EventTime, Properties: properties}
}
