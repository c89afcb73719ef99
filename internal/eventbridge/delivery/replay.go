package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
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
// and publishes the matching ones to its topic of replays. Duplicates that engines left out, because
// they came within the bus' window, are replayed.
func (p *Processor) Replay(ctx context.Context, bus, subscriber string, o ReplayOptions) (Job, error) {
	s, err := p.subscriber(bus, subscriber)
	if err != nil {
		return Job{}, err
	}
	plan := replayPlan{ReplayOptions: o}
	switch {
	case o.Rate < 0:
		return Job{}, fmt.Errorf("%w: rate must be 0 or more", ErrOptions)
	case s.Order == model.OrderLive:
		return Job{}, fmt.Errorf("%w: a live subscriber gets only events that arrive while it is connected: a replay is not possible", ErrOptions)
	case o.To.IsZero() || o.To.After(time.Now()):
		plan.To, plan.ToEnd = time.Now(), true
	}
	if !plan.From.Before(plan.To) {
		return Job{}, fmt.Errorf("%w: from must be before to", ErrOptions)
	}
	return p.beginReplay(ctx, s, plan)
}

// startOverlap is how long engines may take to see a new subscriber, if nothing says whether they
// have seen it.
const startOverlap = 5 * time.Second

// Start begins the replay that gives a new subscriber the events before it, from its start on. The
// process that has created the subscriber calls it once. began is false if there is nothing to
// replay: start is latest, or in the future. The subscriber may get an event twice if it arrives
// before all engines have seen the subscriber, or before the replay has read that far.
func (p *Processor) Start(ctx context.Context, bus, subscriber string) (j Job, began bool, err error) {
	s, err := p.subscriber(bus, subscriber)
	if err != nil || s.Start == "" || s.Start == "latest" || s.Order == model.OrderLive {
		return Job{}, false, err
	}
	plan := replayPlan{ReplayOptions: ReplayOptions{To: s.Created.Add(startOverlap)}, ToEnd: true, Revision: s.Revision}
	if s.Start != "earliest" {
		if plan.From, err = time.Parse(time.RFC3339, s.Start); err != nil {
			return Job{}, false, fmt.Errorf("start: %w", err)
		}
	}
	if !plan.From.Before(plan.To) {
		return Job{}, false, nil // start is in the future: engines match what comes
	}
	j, err = p.beginReplay(ctx, s, plan)
	return j, err == nil, err
}

func (p *Processor) beginReplay(ctx context.Context, s *model.Subscriber, plan replayPlan) (Job, error) {
	return p.begin(ctx, s, record{Job: Job{Kind: KindReplay, DryRun: plan.DryRun}, Replay: &plan})
}

// heard waits until all engines match by a revision or a later one. Engines with an older revision
// store no copies for the subscriber: their events must be in the topic when the replay reads it.
// Engines that are unavailable match by a later revision when they come back.
func (p *Processor) heard(ctx context.Context, revision int64, created time.Time) error {
	for ctx.Err() == nil {
		late := time.Since(created) > startOverlap
		switch {
		case p.instances == nil && late:
			return nil
		case p.instances != nil && p.knows(p.instances.Instances()):
			if active, behind := p.instances.Active(revision); active || late && len(behind) == 0 {
				return nil
			}
		}
		backoff.Sleep(ctx, 100*time.Millisecond)
	}
	return ctx.Err()
}

// replayPending bounds the copies that are published and not acknowledged yet.
const replayPending = 1000

// replay is the state of one replay job.
type replay struct {
	*job
	sub          *model.Subscriber
	plan         replayPlan
	id           string
	index        *eventpattern.Index[int]
	scratch      eventpattern.Scratch
	matched      []int
	limit        *rate.Limiter
	pending      *semaphore.Weighted
	out          *messaging.Publisher  // nil in a dry run
	failed       atomic.Pointer[error] // why a copy was not stored
	passed       map[int]bool          // partitions that have been read up to To
	expected     int
	at           map[int]messaging.MessageID // by partition: the last message that was looked at
	checkpointed time.Time
}

var errReplayed = errors.New("all is read")

func newReplay(j *job, s *model.Subscriber, plan replayPlan) *replay {
	r := &replay{
		job: j, sub: s, plan: plan, id: j.now().ID, index: eventpattern.NewIndex[int](), limit: rate.NewLimiter(rate.Inf, 1),
		pending: semaphore.NewWeighted(replayPending), passed: make(map[int]bool),
		at: make(map[int]messaging.MessageID), checkpointed: time.Now(),
	}
	if plan.Rate > 0 {
		r.limit = rate.NewLimiter(rate.Limit(plan.Rate), 1)
	}
	for i, rule := range s.Rules {
		r.index.Set(i, rule.Compiled())
	}
	return r
}

func (p *Processor) replay(ctx context.Context, j *job, b *model.Bus, s *model.Subscriber, plan replayPlan) error {
	topics := p.topics
	after, err := plan.ids()
	if err != nil {
		return err
	}
	if plan.Revision > 0 && !plan.Reading {
		if err := p.heard(ctx, plan.Revision, s.Created); err != nil {
			return err
		}
	}
	if plan.ToEnd && !plan.Reading {
		plan.To = time.Now()
		plan.Reading = true
		j.checkpoint(plan)
	} else if plan.ToEnd { // the topic has another end now
		plan.To, plan.ToEnd = plan.To.Add(clocksApart), false
	}
	r := newReplay(j, s, plan)
	for _, id := range after {
		r.at[id.Partition()] = id
	}
	if !plan.DryRun {
		if err := p.keep(ctx, p.topics.Replay(s)); err != nil {
			return err
		}
		p.replaying(s)
		profile := messaging.Business()
		profile.Name, profile.Compression = "eventbridge_replay", messaging.NoCompression
		if r.out, err = p.client.Publisher(ctx, topics.Replay(s), profile); err != nil {
			return err
		}
		defer p.close(ctx, r.out)
	}
	partitions, err := p.client.Partitions(ctx, topics.Events(b.Name))
	if err != nil {
		return err
	}
	r.expected = len(partitions)
	from := messaging.Earliest()
	if !plan.From.IsZero() {
		from = messaging.AtTime(plan.From.Add(-clocksApart))
	}
	reader, err := p.client.Reader(ctx, messaging.ReaderConfig{
		Topic: topics.Events(b.Name), Name: "eventbridge_replay", From: &from, After: after, PrefetchBytes: 4 << 20, MaxMessageBytes: 16 << 10,
	})
	if err != nil {
		return err
	}
	defer p.close(ctx, reader)
	_, err = reader.ReadToEnd(ctx, r.take)
	if err != nil && !errors.Is(err, errReplayed) {
		// A process that takes the job over begins after what is stored by then.
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.StopTimeout)
		defer cancel()
		_ = r.checkpoint(closing)
		return err
	}
	return r.checkpoint(ctx)
}

// checkpoint waits until everything that was published is stored, and records up to which messages.
func (r *replay) checkpoint(ctx context.Context) error {
	if err := r.pending.Acquire(ctx, replayPending); err != nil {
		return err
	}
	defer r.pending.Release(replayPending)
	if failed := r.failed.Load(); failed != nil {
		return *failed
	}
	plan := r.plan
	plan.After = nil
	for _, id := range r.at {
		plan.After = append(plan.After, id.Bytes())
	}
	r.job.checkpoint(plan)
	r.checkpointed = time.Now()
	return nil
}

// take replays one event if it matches. It makes a checkpoint every checkpointEvery.
func (r *replay) take(ctx context.Context, d *messaging.Delivery) error {
	if time.Since(r.checkpointed) >= checkpointEvery {
		if err := r.checkpoint(ctx); err != nil {
			return err
		}
	}
	if err := r.look(ctx, d); err != nil {
		return err
	}
	r.at[d.Partition] = d.ID
	return nil
}

// checkpointEvery is how often a replay records what is stored.
const checkpointEvery = 2 * time.Second

func (r *replay) look(ctx context.Context, d *messaging.Delivery) error {
	if !r.plan.ToEnd && !d.PublishTime.Before(r.plan.To) {
		if d.PublishTime.After(r.plan.To.Add(clocksApart)) {
			if r.passed[d.Partition] = true; len(r.passed) == r.expected {
				return errReplayed
			}
		}
		return nil
	}
	if d.PublishTime.Before(r.plan.From) {
		return nil
	}
	r.count(func(c *Counts) { c.Read++ })
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
		r.count(func(c *Counts) { c.Chosen, c.Left.Foreign = c.Chosen+1, c.Left.Foreign+1 })
		return nil //nolint:nilerr // engines have made it a dead letter of the bus
	}
	if r.out == nil {
		r.count(func(c *Counts) { c.Chosen++ })
		return nil
	}
	if err := r.limit.Wait(ctx); err != nil {
		return err
	}
	if err := r.pending.Acquire(ctx, 1); err != nil {
		return err
	}
	if failed := r.failed.Load(); failed != nil {
		r.pending.Release(1)
		return *failed
	}
	r.out.PublishAsync(ctx, r.copyOf(d, e), func(_ messaging.MessageID, err error) {
		switch {
		case err == nil:
			r.count(func(c *Counts) { c.Chosen, c.Published = c.Chosen+1, c.Published+1 })
		case errors.Is(err, messaging.ErrTooLarge): // as an error, it would end each replay here
			r.count(func(c *Counts) { c.Chosen, c.Left.TooLarge = c.Chosen+1, c.Left.TooLarge+1 })
		default:
			r.failed.CompareAndSwap(nil, &err)
		}
		r.pending.Release(1)
	})
	return nil
}

func (r *replay) copyOf(d *messaging.Delivery, e event.Event) *messaging.Record {
	properties := make(map[string]string, 2)
	model.CopyProperties(properties, d.Properties)
	return &messaging.Record{Key: e.PartitionKey, Payload: d.Payload, EventTime: d.EventTime, Properties: properties}
}
