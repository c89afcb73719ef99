package messaging

import (
	"context"
	"encoding/hex"
	"errors"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/backoff"
)

// Properties that copies on retry and dead-letter topics carry besides the
// original's own. Times are RFC 3339 in UTC, with nanoseconds.
const (
	// PropertyReason is why the last attempt failed.
	PropertyReason = "aviary_reason"
	// PropertyAttempts is how many attempts were made.
	PropertyAttempts = "aviary_attempts"
	// PropertyFirstFailedAt is when the first attempt failed.
	PropertyFirstFailedAt = "aviary_first_failed_at"
	// PropertyOriginTopic is the topic (partition) of the original message.
	PropertyOriginTopic = "aviary_origin_topic"
	// PropertyOriginID is the original's message id, as hexadecimal MessageIdData.
	PropertyOriginID = "aviary_origin_id"
	// PropertyOriginPublishedAt is when the original was published.
	PropertyOriginPublishedAt = "aviary_origin_published_at"
	// PropertyOriginProducer is the name of the original's producer.
	PropertyOriginProducer = "aviary_origin_producer"
	// PropertyOriginReplicatedFrom is the cluster that the original came from.
	PropertyOriginReplicatedFrom = "aviary_origin_replicated_from"
	// PropertyDueAt is the time before which no further attempt is to be made.
	PropertyDueAt = "aviary_due_at"
	// PropertySubscription is the subscription whose consumer made the copy.
	PropertySubscription = "aviary_subscription"
)

const propertyPrefix = "aviary_"

// maxEarly bounds how long a copy that a broker delivered early is held here.
const maxEarly = 5 * time.Second

// reasonBytes bounds PropertyReason.
const reasonBytes = 1 << 10

// delay is the pause after the given attempt failed.
func (r Retry) delay(attempt int) time.Duration {
	d := r.MinDelay
	for range min(attempt-1, 62) {
		if d >= r.MaxDelay/2 {
			d = r.MaxDelay
			break
		}
		d *= 2
	}
	return d + backoff.Jitter(d/5)
}

// copyJob is a delivery's verdict that a copy of it goes to another topic.
type copyJob struct {
	to      *copyTarget
	record  *Record
	backoff backoff.Backoff
	settled bool  // stored
	err     error // of the last try
}

func newCopyJob(d *task, to *copyTarget, reason error, delay time.Duration) *copyJob {
	p := make(map[string]string, len(d.Properties)+9)
	maps.Copy(p, d.Properties)
	text := strings.ToValidUTF8(reason.Error(), "\uFFFD")
	if len(text) > reasonBytes {
		text = strings.ToValidUTF8(text[:reasonBytes], "")
	}
	p[PropertyReason] = text
	p[PropertyAttempts] = strconv.Itoa(d.Attempt)
	p[PropertyFirstFailedAt] = d.FirstFailed.UTC().Format(time.RFC3339Nano)
	p[PropertyOriginTopic] = d.Topic
	p[PropertyOriginID] = hex.EncodeToString(d.ID.Bytes())
	p[PropertyOriginPublishedAt] = d.PublishTime.UTC().Format(time.RFC3339Nano)
	p[PropertyOriginProducer] = d.ProducerName
	if d.ReplicatedFrom != "" {
		p[PropertyOriginReplicatedFrom] = d.ReplicatedFrom
	}
	p[PropertySubscription] = to.subscription
	rec := &Record{Key: d.Key, OrderingKey: d.OrderingKey, Payload: d.Payload, Properties: p, EventTime: d.EventTime}
	if delay > 0 {
		rec.DeliverAt = time.Now().Add(delay)
		p[PropertyDueAt] = rec.DeliverAt.UTC().Format(time.RFC3339Nano)
	}
	return &copyJob{to: to, record: rec}
}

// restore makes a delivery from a retry topic look like its original.
func (d *task) restore() {
	attempts, err := strconv.Atoi(d.Properties[PropertyAttempts])
	if err != nil {
		return // not one of our copies
	}
	at := func(name string) time.Time {
		t, _ := time.Parse(time.RFC3339Nano, d.Properties[name])
		return t
	}
	d.Attempt = attempts + 1
	d.FirstFailed = at(PropertyFirstFailedAt)
	// Brokers deliver up to a tick (1 s) early unless they are told to be strict:
	// the rest is waited for here. Bounded, since their clock may differ from ours.
	if due := at(PropertyDueAt); time.Until(due) < maxEarly {
		d.due = due
	}
	d.Topic = d.Properties[PropertyOriginTopic]
	d.PublishTime = at(PropertyOriginPublishedAt)
	d.ProducerName = d.Properties[PropertyOriginProducer]
	d.ReplicatedFrom = d.Properties[PropertyOriginReplicatedFrom]
	if b, err := hex.DecodeString(d.Properties[PropertyOriginID]); err == nil {
		if id, err := ParseMessageID(b); err == nil && !id.IsZero() {
			d.ID, d.Partition = id, id.Partition()
		}
	}
	maps.DeleteFunc(d.Properties, func(name, _ string) bool { return strings.HasPrefix(name, propertyPrefix) })
	if len(d.Properties) == 0 {
		d.Properties = nil
	}
}

// copier holds the topics that a run copies messages to.
type copier struct {
	retry *copyTarget // nil: messages are held in place
	dead  *copyTarget
}

// copyTarget is a topic that copies go to. Its publisher is opened when first
// needed, in the background: a topic that cannot be opened must not occupy a
// worker.
type copyTarget struct {
	client       *Client
	topic        string
	subscription string
	keepFor      string // subscription to create, "" for none
	profile      Profile
	result       prometheus.Counter
	log          *zap.Logger

	until   func() context.Context // ends when opening makes no more sense
	opening sync.Once
	opened  sync.WaitGroup
	open    atomic.Pointer[Publisher]
	waited  atomic.Int32
}

func newCopier(r *run) *copier {
	c := r.cfg
	target := func(name, topic string, result prometheus.Counter) *copyTarget {
		p := Business()
		p.Name = name
		// Unbatched: copies with a delivery time travel alone anyway, and
		// Key_Shared readers of dead letters need it. A full queue must not block
		// a worker.
		p.BatchRecords, p.Admission, p.GroupCommit = 1, FailFast, false
		p.MaxPendingRecords, p.MaxPendingBytes = 1000, c.PrefetchBytes
		return &copyTarget{
			client: r.c.client, topic: fullTopicName(topic), subscription: c.Subscription,
			profile: p, result: result, log: r.log,
			until: func() context.Context { return r.stop },
		}
	}
	all := &copier{dead: target("dead_letter", c.Retry.DeadLetterTopic, r.metrics.deadLettered)}
	if c.Retry.DeadLetterSubscription != "-" {
		all.dead.keepFor = c.Retry.DeadLetterSubscription
	}
	if c.usesRetryTopic() {
		all.retry = target("retry", c.Retry.Topic, r.metrics.retried)
	}
	return all
}

// publisher returns the target's publisher, nil while it is being opened.
func (t *copyTarget) publisher() *Publisher {
	t.opening.Do(func() { t.opened.Go(t.prepare) })
	return t.open.Load()
}

// patience is how long to wait for a publisher that is being opened.
func (t *copyTarget) patience() time.Duration {
	n := min(t.waited.Add(1), 100)
	return time.Duration(n) * 5 * time.Millisecond
}

// prepare opens the publisher, trying until the run stops.
func (t *copyTarget) prepare() {
	ctx := t.until()
	if t.keepFor != "" {
		t.subscribeOnce(ctx)
	}
	p, err := t.client.Publisher(ctx, t.topic, t.profile)
	if err != nil {
		if ctx.Err() == nil {
			t.log.Error("cannot open topic for copies", zap.String("to", t.topic), zap.Error(err))
		}
		return
	}
	t.open.Store(p)
}

// subscribeOnce creates the subscription that keeps dead letters from being
// deleted, and leaves it without a consumer.
func (t *copyTarget) subscribeOnce(ctx context.Context) {
	var b backoff.Backoff
	for attempt := 1; ctx.Err() == nil; attempt++ {
		var err error
		done := within(ctx, func() {
			var raw pulsar.Consumer
			raw, err = t.client.consumers.Subscribe(pulsar.ConsumerOptions{
				Topic: t.topic, SubscriptionName: t.keepFor, Type: pulsar.Shared, ReceiverQueueSize: 1,
				SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest, BackOffPolicyFunc: newBackoff,
			})
			if err == nil {
				raw.Close()
			}
		})
		if !done {
			return
		}
		// Busy: somebody reads it with another type, so it exists.
		if err == nil || closeReason(err) == "busy" || permanent(err) || closeReason(err) == "unauthorized" {
			if err != nil && closeReason(err) != "busy" {
				t.log.Warn("cannot create dead-letter subscription, going on without", zap.String("to", t.topic), zap.Error(err))
			}
			return
		}
		if attempt == 1 {
			t.log.Warn("cannot create dead-letter subscription, will keep trying", zap.String("to", t.topic), zap.Error(err))
		}
		backoff.Sleep(ctx, b.Next())
	}
}

// close closes the publishers. No copy is under way any more, or ctx has ended.
func (c *copier) close(ctx context.Context) {
	for _, t := range []*copyTarget{c.retry, c.dead} {
		if t == nil {
			continue
		}
		t.opening.Do(func() {}) // never from now on
		t.opened.Wait()
		if p := t.open.Load(); p != nil {
			if err := p.Close(ctx); err != nil && !errors.Is(err, ErrUnacknowledged) {
				t.log.Warn("cannot close topic for copies", zap.String("to", t.topic), zap.Error(err))
			}
		}
	}
}
