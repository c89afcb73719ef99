package processor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
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

	// toEnd says that all is wanted that the topic holds at To, the present then: the clocks of those that publish may go
	// ahead of this one's.
	toEnd bool
}

// clocksApart is how far the clocks of the processes that take events may be apart: publish times do not ascend.
const clocksApart = time.Minute

// Replay begins a job that matches past events of the bus against the subscriber's present rules and publishes those
// that match to its topic of replays. Their copies have the job's id as the property "replay". Events that came again
// within the bus' window, and were left out, are not.
func (p *Processor) Replay(bus, subscriber string, o ReplayOptions) (Job, error) {
	b, s, err := p.subscriber(bus, subscriber)
	if err != nil {
		return Job{}, err
	}
	switch {
	case o.Rate < 0:
		return Job{}, fmt.Errorf("%w: rate must be 0 or more", ErrOptions)
	case s.Order == registry.OrderLive:
		return Job{}, fmt.Errorf("%w: a live subscriber gets what comes while it is connected, and no replay", ErrOptions)
	case o.To.IsZero() || o.To.After(time.Now()):
		o.To, o.toEnd = time.Now(), true
	}
	if !o.From.Before(o.To) {
		return Job{}, fmt.Errorf("%w: from must be before to", ErrOptions)
	}
	return p.beginReplay(b, s, o)
}

// startOverlap is for how long after its creation a new subscriber's events are taken from the past, too: as long as
// engines may take to hear of it.
const startOverlap = 5 * time.Second

// Start begins the replay by which a new subscriber gets what came before it, from where its start says. Whoever has
// created the subscriber calls it once. It returns false when there is nothing to replay: start is latest. What comes in
// the first five seconds may come twice.
//
// Like all jobs the replay ends with this process: what it has not published then comes by another one ([Processor.Replay]).
func (p *Processor) Start(bus, subscriber string) (j Job, began bool, err error) {
	b, s, err := p.subscriber(bus, subscriber)
	if err != nil || s.Start == "" || s.Start == "latest" || s.Order == registry.OrderLive {
		return Job{}, false, err
	}
	o := ReplayOptions{To: s.Created.Add(startOverlap), toEnd: true}
	if s.Start != "earliest" {
		if o.From, err = time.Parse(time.RFC3339, s.Start); err != nil {
			return Job{}, false, fmt.Errorf("start: %w", err)
		}
	}
	if !o.From.Before(o.To) {
		return Job{}, false, nil // it begins in the future: engines match what comes
	}
	j, err = p.beginReplay(b, s, o)
	return j, err == nil, err
}

func (p *Processor) beginReplay(b *registry.Bus, s *registry.Subscriber, o ReplayOptions) (Job, error) {
	about := Job{Kind: KindReplay, Bus: b.Name, Subscriber: s.Name, DryRun: o.DryRun}
	return p.jobs.start(s.UID, about, func(ctx context.Context, j *job) error {
		return p.replay(ctx, j, b, s, o)
	})
}

// replayPending bounds the copies that are under way.
const replayPending = 1000

// replay is one job.
type replay struct {
	*job
	sub      *registry.Subscriber
	options  ReplayOptions
	id       string
	index    *match.Index[int]
	scratch  match.Scratch
	matched  []int
	limit    *rate.Limiter
	pending  *semaphore.Weighted
	out      *messaging.Publisher // nil in a dry run
	failed   chan error
	passed   map[int]bool // partitions that are read up to To
	expected int
}

var errReplayed = errors.New("all is read")

func newReplay(j *job, s *registry.Subscriber, o ReplayOptions) *replay {
	r := &replay{
		job: j, sub: s, options: o, id: j.now().ID, index: match.NewIndex[int](), limit: rate.NewLimiter(rate.Inf, 1),
		pending: semaphore.NewWeighted(replayPending), failed: make(chan error, 1), passed: make(map[int]bool),
	}
	if o.Rate > 0 {
		r.limit = rate.NewLimiter(rate.Limit(o.Rate), 1)
	}
	for i, rule := range s.Rules {
		r.index.Set(i, rule.Compiled())
	}
	return r
}

func (p *Processor) replay(ctx context.Context, j *job, b *registry.Bus, s *registry.Subscriber, o ReplayOptions) error {
	r := newReplay(j, s, o)
	topics := p.topics
	if !o.DryRun {
		if err := p.keep(ctx, p.topics.Replay(s)); err != nil {
			return err
		}
		p.replaying(s)
		profile := messaging.Business()
		profile.Name, profile.Compression = "eventbridge_replay", messaging.NoCompression
		var err error
		if r.out, err = p.client.Publisher(ctx, topics.Replay(s), profile); err != nil {
			return err
		}
		defer p.close(ctx, r.out)
	}
	sleep(ctx, time.Until(o.To)) // of a start: until engines have heard of it
	partitions, err := p.client.Partitions(ctx, topics.Events(b.Name))
	if err != nil {
		return err
	}
	r.expected = len(partitions)
	from := messaging.Earliest()
	if !o.From.IsZero() {
		from = messaging.AtTime(o.From.Add(-clocksApart))
	}
	reader, err := p.client.Reader(ctx, messaging.ReaderConfig{
		Topic: topics.Events(b.Name), Name: "eventbridge_replay", From: &from, PrefetchBytes: 4 << 20, MaxMessageBytes: 16 << 10,
	})
	if err != nil {
		return err
	}
	defer p.close(ctx, reader)
	_, err = reader.ReadToEnd(ctx, r.take)
	if err != nil && !errors.Is(err, errReplayed) {
		return err
	}
	// All that was published is stored, or has failed.
	if err := r.pending.Acquire(ctx, replayPending); err != nil {
		return err
	}
	select {
	case err := <-r.failed:
		return err
	default:
		return nil
	}
}

// take looks at one event.
func (r *replay) take(ctx context.Context, d *messaging.Delivery) error {
	if !r.options.toEnd && !d.PublishTime.Before(r.options.To) {
		if d.PublishTime.After(r.options.To.Add(clocksApart)) {
			if r.passed[d.Partition] = true; len(r.passed) == r.expected {
				return errReplayed
			}
		}
		return nil
	}
	if d.PublishTime.Before(r.options.From) {
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
	select {
	case err := <-r.failed:
		r.pending.Release(1)
		return err
	default:
	}
	r.out.PublishAsync(ctx, r.copyOf(d, e), func(_ messaging.MessageID, err error) {
		if err == nil {
			r.published.Add(1)
		} else {
			select {
			case r.failed <- err:
			default:
			}
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
