package processor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/pkg/match"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// ReplayOptions say which past events come again.
type ReplayOptions struct {
	// From and To bound when the event was stored, by the clock of the process that took it: From <= t < To. A zero From
	// is the oldest event that the bus' topic keeps, a zero To the beginning of the job.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// Rate bounds events per second. 0: no bound.
	Rate float64 `json:"rate,omitempty"`
	// DryRun only counts.
	DryRun bool `json:"dry_run,omitempty"`
}

// clocksApart is how far the clocks of the processes that take events may be apart: publish times do not ascend.
const clocksApart = time.Minute

// Replay begins a job that matches past events of the bus against the subscriber's present rules and publishes those
// that match to its topic of replays. Their copies have the job's id as the property "replay". Events that came again
// within the bus' window, and were left out, are not.
func (p *Processor) Replay(ctx context.Context, bus, subscriber string, o ReplayOptions) (Job, error) {
	s, err := p.subscriber(bus, subscriber)
	if err != nil {
		return Job{}, err
	}
	plan := replayPlan{ReplayOptions: o}
	switch {
	case o.Rate < 0:
		return Job{}, fmt.Errorf("%w: rate must be 0 or more", ErrOptions)
	case s.Order == registry.OrderLive:
		return Job{}, fmt.Errorf("%w: a live subscriber gets what comes while it is connected, and no replay", ErrOptions)
	case o.To.IsZero() || o.To.After(time.Now()):
		plan.To, plan.ToEnd = time.Now(), true
	}
	if !plan.From.Before(plan.To) {
		return Job{}, fmt.Errorf("%w: from must be before to", ErrOptions)
	}
	return p.beginReplay(ctx, s, plan)
}

// startOverlap is how long engines may take to hear of a new subscriber, where nothing tells whether they have.
const startOverlap = 5 * time.Second

// Start begins the replay by which a new subscriber gets what came before it, from where its start says. Whoever has
// created the subscriber calls it once. It returns false when there is nothing to replay: start is latest. What comes
// until all engines have heard of the subscriber, and until the replay has read it, may come twice.
func (p *Processor) Start(ctx context.Context, bus, subscriber string) (j Job, began bool, err error) {
	s, err := p.subscriber(bus, subscriber)
	if err != nil || s.Start == "" || s.Start == "latest" || s.Order == registry.OrderLive {
		return Job{}, false, err
	}
	plan := replayPlan{ReplayOptions: ReplayOptions{To: s.Created.Add(startOverlap)}, ToEnd: true, Revision: s.Revision}
	if s.Start != "earliest" {
		if plan.From, err = time.Parse(time.RFC3339, s.Start); err != nil {
			return Job{}, false, fmt.Errorf("start: %w", err)
		}
	}
	if !plan.From.Before(plan.To) {
		return Job{}, false, nil // it begins in the future: engines match what comes
	}
	j, err = p.beginReplay(ctx, s, plan)
	return j, err == nil, err
}

func (p *Processor) beginReplay(ctx context.Context, s *registry.Subscriber, plan replayPlan) (Job, error) {
	return p.begin(ctx, s, record{Job: Job{Kind: KindReplay, DryRun: plan.DryRun}, Replay: &plan})
}

// heard waits until all engines match by a revision: what they match by an older one is not stored for the subscriber, and
// has to be in the topic when it is read. Engines that are away match by a newer one when they come.
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
		sleep(ctx, 100*time.Millisecond)
	}
	return ctx.Err()
}

// replayPending bounds the copies that are under way.
const replayPending = 1000

// replay is one job.
type replay struct {
	*job
	sub      *registry.Subscriber
	plan     replayPlan
	id       string
	index    *match.Index[int]
	scratch  match.Scratch
	matched  []int
	limit    *rate.Limiter
	pending  *semaphore.Weighted
	out      *messaging.Publisher  // nil in a dry run
	failed   atomic.Pointer[error] // why something was not stored
	passed   map[int]bool          // partitions that are read up to To
	expected int
	at       map[int]messaging.MessageID // of each partition, the last that was looked at
	settled  time.Time
}

var errReplayed = errors.New("all is read")

func newReplay(j *job, s *registry.Subscriber, plan replayPlan) *replay {
	r := &replay{
		job: j, sub: s, plan: plan, id: j.now().ID, index: match.NewIndex[int](), limit: rate.NewLimiter(rate.Inf, 1),
		pending: semaphore.NewWeighted(replayPending), passed: make(map[int]bool),
		at: make(map[int]messaging.MessageID), settled: time.Now(),
	}
	if plan.Rate > 0 {
		r.limit = rate.NewLimiter(rate.Limit(plan.Rate), 1)
	}
	for i, rule := range s.Rules {
		r.index.Set(i, rule.Compiled())
	}
	return r
}

func (p *Processor) replay(ctx context.Context, j *job, b *registry.Bus, s *registry.Subscriber, plan replayPlan) error {
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
		j.settle(plan)
	} else if plan.ToEnd { // the end of the topic is another one now
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
		// Whoever takes it over begins behind what is stored by then.
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.StopTimeout)
		defer cancel()
		_ = r.settle(closing)
		return err
	}
	return r.settle(ctx)
}

// settle waits until all that was published is stored, and notes up to where that is.
func (r *replay) settle(ctx context.Context) error {
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
	r.job.settle(plan)
	r.settled = time.Now()
	return nil
}

// take looks at one event.
func (r *replay) take(ctx context.Context, d *messaging.Delivery) error {
	if time.Since(r.settled) >= settleEvery {
		if err := r.settle(ctx); err != nil {
			return err
		}
	}
	if err := r.look(ctx, d); err != nil {
		return err
	}
	r.at[d.Partition] = d.ID
	return nil
}

// settleEvery is how often it is noted what is stored.
const settleEvery = 2 * time.Second

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
	r.read.Add(1)
	var err error
	r.matched, err = r.index.Match(&r.scratch, r.matched[:0], d.Payload)
	if err != nil || len(r.matched) == 0 {
		return nil //nolint:nilerr // it is a dead letter of the bus
	}
	r.chosen.Add(1)
	if r.out == nil {
		return nil
	}
	e, err := event.Decode(d.Payload)
	if err != nil {
		return nil //nolint:nilerr // the same
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
		if err == nil {
			r.published.Add(1)
		} else {
			r.failed.CompareAndSwap(nil, &err)
		}
		r.pending.Release(1)
	})
	return nil
}

func (r *replay) copyOf(d *messaging.Delivery, e event.Event) *messaging.Record {
	names := make([]string, len(r.matched))
	for i, rule := range r.matched {
		names[i] = r.sub.Rules[rule].Name
	}
	properties := map[string]string{
		"rules": strings.Join(names, ","), "revision": strconv.FormatInt(r.sub.Revision, 10), "replay": r.id,
	}
	if hops := d.Properties["hops"]; hops != "" {
		properties["hops"] = hops
	}
	return &messaging.Record{Key: e.PartitionKey, Payload: d.Payload, EventTime: d.EventTime, Properties: properties}
}
