package target

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

const (
	// pendingEvents and pendingBytes bound the events of one subscriber that are in flight in a
	// sink. A sink keeps an event until its system answers, which may take longer than an attempt
	// may.
	pendingEvents = 1000
	pendingBytes  = 8 << 20
)

// sinkTarget delivers through a sink of internal/connector.
type sinkTarget struct {
	sink    *sharedSink
	message func(*Delivery) (to string, m *message.Message, err error)
	timeout time.Duration
	// keyOfEvent says that RabbitMQ's routing key is the event's type, not the subscriber's.
	keyOfEvent bool
	room       *semaphore.Weighted // of pendingBytes
	closed     sync.Once
}

func newSinkTarget(sink *sharedSink, timeout time.Duration, convert func(*Delivery) (string, *message.Message, error)) *sinkTarget {
	return &sinkTarget{sink: sink, message: convert, timeout: timeout, room: semaphore.NewWeighted(pendingBytes)}
}

// Close releases the sink. If no other target uses the sink, Close waits until ctx ends for events
// in flight.
func (t *sinkTarget) Close(ctx context.Context) error {
	t.closed.Do(func() { t.sink.release(ctx) })
	return nil
}

// outcome is the outcome of one delivery of a batch.
type outcome struct {
	index int
	err   error
}

// Deliver hands all of batch to the sink, in its order, and waits for the outcomes.
func (t *sinkTarget) Deliver(ctx context.Context, batch []Delivery) []Result {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	results := make([]Result, len(batch))
	outcomes := make(chan outcome, len(batch)) // with capacity for outcomes that come after Deliver has returned
	waiting := make([]bool, len(batch))
	left := 0
	for i := range batch {
		to, m, err := t.message(&batch[i])
		if err != nil {
			results[i] = Result{Verdict: Refused, Reason: ReasonEvent, Err: err, Latency: time.Since(began)}
			continue
		}
		weight := min(max(m.Size(), pendingBytes/pendingEvents), pendingBytes)
		if t.room.Acquire(ctx, weight) != nil {
			results[i] = t.unanswered(ctx, ReasonBusy)
			results[i].Latency = time.Since(began)
			continue
		}
		waiting[i] = true
		left++
		(*t.sink.present.Load()).Send(ctx, to, m, func(err error) {
			t.room.Release(weight)
			outcomes <- outcome{i, err}
		})
	}
	for left > 0 {
		select {
		case o := <-outcomes:
			results[o.index] = t.result(ctx, o.err)
			results[o.index].Latency = time.Since(began)
			waiting[o.index] = false
			left--
			continue
		case <-ctx.Done():
		}
		for len(outcomes) > 0 {
			o := <-outcomes
			results[o.index] = t.result(ctx, o.err)
			results[o.index].Latency = time.Since(began)
			waiting[o.index] = false
		}
		for i := range waiting {
			if waiting[i] {
				results[i] = t.unanswered(ctx, ReasonTimeout)
				results[i].Latency = time.Since(began)
			}
		}
		break
	}
	return results
}

// result returns what the outcome of a sink means.
func (t *sinkTarget) result(ctx context.Context, err error) Result {
	if err == nil {
		return Result{Verdict: Delivered}
	}
	if reason, refused := pipeline.Refused(err); refused {
		if t.aboutEvent(reason) {
			return Result{Verdict: Refused, Reason: reason, Err: err}
		}
		return unavailable(reason, err)
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return t.unanswered(ctx, ReasonTimeout)
	}
	return unavailable(ReasonConnection, t.because(err))
}

// unanswered is the result without an outcome. If the sink has reported an error, that is the
// cause.
func (t *sinkTarget) unanswered(ctx context.Context, reason string) Result {
	stopped, err := connectionError(ctx, ctx.Err(), t.timeout)
	if stopped == ReasonStopped {
		return unavailable(stopped, err)
	}
	if reason == ReasonBusy {
		err = fmt.Errorf("no answer within %s to what was sent before", t.timeout)
	}
	return unavailable(reason, t.because(err))
}

// because adds to err why the sink fails, if it does. It makes the log repeat that while attempts
// fail.
func (t *sinkTarget) because(err error) error {
	cause := t.sink.health.Current()
	if cause == nil {
		return err
	}
	t.sink.health.Remind()
	return fmt.Errorf("%w: %w", err, cause)
}

// aboutEvent reports whether a connector's reason for refusing is about the event. The other
// reasons are about the destination, such as the name of a topic, which people can correct.
func (t *sinkTarget) aboutEvent(reason string) bool {
	switch reason {
	case "too_large", "invalid_record", "invalid_timestamp", "bad_header", "bad_property", "refused_by_broker":
		return true
	case "unroutable":
		return t.keyOfEvent
	}
	return false
}

// newKafka, newRabbitMQ and newPulsar expect a target in which Check has found no fault.

func newKafka(c *model.KafkaTarget, timeout time.Duration, f *Factory) (Target, error) {
	sink, err := f.kafkaSink(c.Connection, c.Topic)
	if err != nil {
		return nil, err
	}
	return newSinkTarget(sink, timeout, func(d *Delivery) (string, *message.Message, error) {
		m, err := newMapping(d)
		if err != nil {
			return "", nil, err
		}
		// The record's time is the present: brokers refuse times ahead of their own, and delete
		// records by their time.
		return c.Topic, &message.Message{Key: keyOf(d), Value: m.data, Headers: m.withType(kafkaPrefix), Time: time.Now()}, nil
	}), nil
}

func newRabbitMQ(c *model.RabbitMQTarget, timeout time.Duration, f *Factory) (Target, error) {
	sink, err := f.rabbitMQSink(c.Connection, c.Exchange)
	if err != nil {
		return nil, err
	}
	t := newSinkTarget(sink, timeout, func(d *Delivery) (string, *message.Message, error) {
		m, err := newMapping(d)
		if err != nil {
			return "", nil, err
		}
		to := c.RoutingKey
		if to == "" {
			to = d.Event.Type
		}
		const persistent = 2
		return to, &message.Message{
			Value: m.data, Headers: m.headers(amqpPrefix), AMQP: &message.AMQP{ContentType: m.contentType, DeliveryMode: persistent},
		}, nil
	})
	t.keyOfEvent = c.RoutingKey == ""
	return t, nil
}

func newPulsar(c *model.PulsarTarget, timeout time.Duration, f *Factory) (Target, error) {
	sink, err := f.pulsarSink(c.Connection)
	if err != nil {
		return nil, err
	}
	return newSinkTarget(sink, timeout, func(d *Delivery) (string, *message.Message, error) {
		m, err := newMapping(d)
		if err != nil {
			return "", nil, err
		}
		out := &message.Message{Key: keyOf(d), Value: m.data, Headers: m.withType(kafkaPrefix), From: message.From{Partition: -1}}
		if d.Event.Time.UnixMilli() > 0 {
			out.Time = time.UnixMilli(d.Event.Time.UnixMilli()).UTC()
		}
		return c.Topic, out, nil
	}), nil
}
