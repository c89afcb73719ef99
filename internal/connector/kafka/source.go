package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// Source reads topics as a member of a consumer group.
type Source struct {
	cfg      SourceConfig
	log      *zap.Logger
	health   *connector.Health
	gaps     *prometheus.CounterVec // by topic
	starts   *prometheus.CounterVec // by topic
	drainCtx context.Context        // ends when a stop must not wait any longer

	mu             sync.Mutex
	client         sarama.Client                  // nil while there is no connection
	claims         map[*claimedPartition]struct{} // the partitions that this process has now
	logAppendTimes map[string]bool                // by topic
}

// NewSource implements [connector.SourceConfig].
func (c SourceConfig) NewSource(o connector.Options) connector.Source {
	o = o.WithDefaults()
	return &Source{
		cfg:    c,
		log:    o.Log,
		health: connector.NewHealth(o.Report),
		gaps: o.Metrics.Counter("kafka_gaps_total",
			"Times that a partition continued from its oldest message because messages after the committed offset were deleted.", "topic"),
		starts: o.Metrics.Counter("kafka_starts_total", "Times that a partition with messages was read from its oldest message "+
			"because the group had no committed offset: the group is new, or its offsets have expired.", "topic"),
		drainCtx:       o.DrainContext,
		claims:         make(map[*claimedPartition]struct{}),
		logAppendTimes: make(map[string]bool),
	}
}

// report reports the state of the source: nil is healthy.
func (s *Source) report(err error) { s.health.Set(connector.Connection, s.cfg.withBrokers(err)) }

// topicIDs are the ids of topics by name.
type topicIDs map[string]sarama.Uuid

var errTopicsChanged = errors.New("the topics to read have changed")

// Run reads until ctx ends, then drains its pipelines, leaves the group and returns nil. It
// reconnects without end. It returns an error only with on_gap fail: a *GapError. It is called once.
func (s *Source) Run(ctx context.Context, pipelines *pipeline.Set) error {
	pause := connector.Reconnect()
	for {
		began := time.Now()
		err := s.connect(ctx, pipelines)
		var gap *GapError
		isGap := errors.As(err, &gap)
		if isGap || (ctx.Err() == nil && err != nil) {
			s.report(err)
		}
		if isGap {
			return err
		}
		pause.Held(time.Since(began))
		if !pause.Wait(ctx) {
			return nil
		}
	}
}

// connect reads over one connection.
func (s *Source) connect(ctx context.Context, pipelines *pipeline.Set) error {
	_, inFlight := pipelines.Bounds()
	conf, err := s.cfg.settings(inFlight)
	if err != nil {
		return err
	}
	client, err := sarama.NewClient(s.cfg.Brokers, conf)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // it reports only what was in flight, and nothing is
	group, err := sarama.NewConsumerGroupFromClient(s.cfg.Group, client)
	if err != nil {
		return err
	}
	var listeners sync.WaitGroup
	listeners.Go(func() { s.reportErrors(group.Errors()) })
	defer func() {
		_ = group.Close() // leaving the group fails when the broker is unavailable; the group then notices by itself
		listeners.Wait()
	}()
	s.setClient(client)
	defer s.setClient(nil)
	for ctx.Err() == nil {
		if err := s.join(ctx, client, group, pipelines); err != nil {
			return err
		}
	}
	return nil
}

func (s *Source) setClient(client sarama.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.client = client
}

// join consumes the topics that exist now, until they change or the session ends otherwise.
func (s *Source) join(ctx context.Context, client sarama.Client, group sarama.ConsumerGroup, pipelines *pipeline.Set) error {
	topics, missing, err := s.discover(client)
	if err != nil {
		return err
	}
	session, end := context.WithCancelCause(ctx)
	defer end(nil)
	if len(topics) == 0 {
		s.watchTopics(session, client, topics, end)
		return nil
	}
	var watch sync.WaitGroup
	watch.Go(func() { s.watchTopics(session, client, topics, end) })
	err = group.Consume(session, slices.Sorted(maps.Keys(topics)),
		&member{source: s, client: client, group: group, pipelines: pipelines, missing: missing, endSession: end})
	cause := context.Cause(session)
	end(nil)
	watch.Wait()
	var gap *GapError
	switch {
	case errors.As(cause, &gap):
		return gap
	case ctx.Err() != nil || errors.Is(cause, errTopicsChanged):
		return nil
	case err != nil:
		return fmt.Errorf("group %s: %w", s.cfg.Group, err)
	}
	// The session ended by itself: a broker is unavailable, or the group has dropped this member.
	pause := connector.Reconnect()
	pause.Wait(ctx)
	return nil
}

// watchTopics ends the session when the topics have changed. It also reports when the source is
// healthy again.
func (s *Source) watchTopics(ctx context.Context, client sarama.Client, topics topicIDs, end context.CancelCauseFunc) {
	const quiet = 3 * time.Second
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !s.health.QuietFor(quiet) && time.Since(last) < s.cfg.DiscoverEvery {
			continue
		}
		last = time.Now()
		now, _, err := s.discover(client)
		switch {
		case err != nil:
			s.report(err)
		case !maps.Equal(topics, now): // a topic that was deleted and created again has another id
			end(errTopicsChanged)
			return
		case s.health.QuietFor(quiet): // no topic is missing: discover would just have reported it
			s.report(nil)
		}
	}
}

// reportErrors reports the errors of a session.
func (s *Source) reportErrors(errs <-chan error) {
	for err := range errs {
		if errors.Is(err, sarama.ErrOffsetOutOfRange) || errors.Is(err, context.Canceled) {
			continue // checkGap handles an offset out of range at the next claim; Canceled is a stop
		}
		s.report(err)
	}
}

// describe asks a broker about topics: none means all of them.
func describe(client sarama.Client, topics []string) ([]*sarama.TopicMetadata, error) {
	broker := client.LeastLoadedBroker()
	if broker == nil {
		return nil, sarama.ErrOutOfBrokers
	}
	response, err := broker.GetMetadata(sarama.NewMetadataRequest(client.Config().Version, topics))
	if err != nil {
		_ = broker.Close() // a broken connection stays with the broker until it is closed; the next use opens it again
		return nil, err
	}
	return response.Topics, nil
}

// discover returns the topics to read that exist, with their ids. It reports and returns as missing
// which do not.
func (s *Source) discover(client sarama.Client) (found topicIDs, missing, err error) {
	pattern, err := compilePattern(s.cfg.Pattern)
	if err != nil {
		return nil, nil, err
	}
	topics, err := describe(client, s.cfg.Topics)
	if err != nil {
		_ = client.RefreshBrokers(s.cfg.Brokers)
		return nil, nil, err
	}
	found = make(topicIDs)
	var absent []string
	var cause error
	for _, topic := range topics {
		switch {
		case pattern != nil && (topic.IsInternal || !pattern.MatchString(topic.Name)):
		case topic.Err == sarama.ErrNoError || errors.Is(topic.Err, sarama.ErrLeaderNotAvailable):
			found[topic.Name] = topic.Uuid
		default:
			absent, cause = append(absent, topic.Name), topic.Err
		}
	}
	switch {
	case len(absent) > 0:
		slices.Sort(absent)
		missing = fmt.Errorf("cannot read topic %s: %w", strings.Join(absent, ", "), cause)
	case len(found) == 0:
		missing = fmt.Errorf("no topic matches %s", s.cfg.Pattern)
	}
	if missing != nil {
		s.report(missing)
	}
	return found, missing, nil
}

// Lag returns how many messages follow the committed offsets in the partitions that this process
// has now. The sum over all members is the group's lag. Lag asks the brokers. Transaction markers
// at the end of a partition count for up to a second. It is safe for concurrent use.
func (s *Source) Lag(ctx context.Context) (int64, error) {
	s.mu.Lock()
	client, claims := s.client, slices.Collect(maps.Keys(s.claims))
	s.mu.Unlock()
	if client == nil {
		return 0, s.cfg.withBrokers(errors.New("not connected"))
	}
	var lag int64
	for _, c := range claims {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		newest, err := client.GetOffset(c.topic, c.partition, sarama.OffsetNewest)
		if err != nil {
			return 0, s.cfg.withBrokers(err)
		}
		lag += max(0, newest-c.nextOffset.Load())
	}
	return lag, nil
}
