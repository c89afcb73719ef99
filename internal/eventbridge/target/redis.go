package target

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// redisStream appends events to a stream. Its fields have the names of the Kafka headers, ce_id and
// so on, and data.
type redisStream struct {
	client  redis.UniversalClient // the connection's
	release func()
	stream  string
	maxLen  int64
	timeout time.Duration
}

// Deliver appends all of batch through one pipeline, in its order.
func (s *redisStream) Deliver(ctx context.Context, batch []Delivery) []Result {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	results := make([]Result, len(batch))
	answers := make([]*redis.StringCmd, len(batch))
	pipe := s.client.Pipeline()
	for i := range batch {
		fields, err := s.fields(&batch[i])
		if err != nil {
			results[i] = Result{Verdict: Refused, Reason: ReasonEvent, Err: err}
			continue
		}
		answers[i] = pipe.XAdd(ctx, &redis.XAddArgs{Stream: s.stream, MaxLen: s.maxLen, Approx: s.maxLen > 0, Values: fields})
	}
	_, _ = pipe.Exec(ctx) // its error is the first of the answers' errors
	for i, answer := range answers {
		if answer != nil {
			results[i] = s.result(ctx, answer.Err())
		}
		results[i].Latency = time.Since(began)
	}
	return results
}

// Close releases the client.
func (s *redisStream) Close(context.Context) error {
	s.release()
	return nil
}

func (s *redisStream) fields(d *Delivery) ([]any, error) {
	m, err := newMapping(d)
	if err != nil {
		return nil, err
	}
	fields := make([]any, 0, 2*len(m.attributes)+6)
	for _, a := range m.attributes {
		fields = append(fields, kafkaPrefix+a.name, a.value)
	}
	if m.contentType != "" {
		fields = append(fields, contentTypeName, m.contentType)
	}
	fields = append(fields, hopsName, m.hops, "data", m.data)
	return fields, nil
}

// result returns what an answer means. An error that Redis answers is about Redis or the stream,
// never the event.
func (s *redisStream) result(ctx context.Context, err error) Result {
	var answered redis.Error
	switch {
	case err == nil:
		return Result{Verdict: Delivered}
	case ctx.Err() != nil:
		return unavailable(connectionError(ctx, err, s.timeout))
	case errors.Is(err, os.ErrDeadlineExceeded): // the deadline of the connection, which is ctx's
		return unavailable(ReasonTimeout, fmt.Errorf("redis stream %q: no answer within %s", s.stream, s.timeout))
	case errors.As(err, &answered):
		return unavailable(ReasonStore, fmt.Errorf("redis stream %q: %w", s.stream, err))
	}
	return unavailable(ReasonConnection, fmt.Errorf("redis stream %q: %w", s.stream, err))
}

// newRedis expects a target in which Check has found no fault.
func newRedis(c *model.RedisTarget, timeout time.Duration, f *Factory) (Target, error) {
	client, release, err := f.redis(c.Connection)
	if err != nil {
		return nil, err
	}
	return &redisStream{client: client, release: release, stream: c.Stream, maxLen: c.MaxLen, timeout: timeout}, nil
}
