package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// Source reads topics as a member of a consumer group.
type Source struct {
	cfg    SourceConfig
	log    *zap.Logger
	health *connector.Health
	gaps   *prometheus.CounterVec
	starts *prometheus.CounterVec
	// drainCtx ends when a stop must not wait any longer.
	drainCtx context.Context

	mu            sync.Mutex
	client        sarama.Client                  // nil while there is no connection
	missing       error                          // topics that do not exist
	claims        map[*claimedPartition]struct{} // the partitions that this process has at present
	claimCount    atomic.Int64                   // len(claims)
	topicSettings map[string]topicSetting        // settings that settingOf has read
}

// NewSource makes a source. It connects to nothing: see Run. Its error is that of Validate.
func NewSource(cfg SourceConfig, o connector.Options) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	o = o.WithDefaults()
	return &Source{
		cfg:           cfg,
		log:           o.Log,
		health:        connector.NewHealth(o.Report),
		gaps:          gapsCounter(o.Metrics),
		starts:        startsCounter(o.Metrics),
		drainCtx:      o.DrainContext,
		claims:        make(map[*claimedPartition]struct{}),
		topicSettings: make(map[string]topicSetting),
	}, nil
}

var errTopicsChanged = errors.New("the topics to read have changed")

// Run reads until ctx ends, then drains its pipelines, leaves the group and returns nil. It connects
// again, for ever, when the connection is lost. It returns an error only with on_gap fail: a
// *GapError. It is called once.
func (s *Source) Run(ctx context.Context, pipelines *pipeline.Set) error {
	pause := connector.Reconnect()
	for {
		began := time.Now()
		err := s.connect(ctx, pipelines)
		var gap *GapError
		if errors.As(err, &gap) {
			s.health.Set(connector.Connection, s.cfg.withBrokers(err))
			return err
		}
		if ctx.Err() == nil && err != nil {
			s.health.Set(connector.Connection, s.cfg.withBrokers(err))
		}
		pause.Held(time.Since(began))
		if !pause.Wait(ctx) {
			return nil
		}
	}
}

// connect reads over one connection.
func (s *Source) connect(ctx context.Context, pipelines *pipeline.Set) (err error) {
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
	s.mu.Lock()
	s.client = client
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.client = nil
		s.mu.Unlock()
	}()
	for ctx.Err() == nil {
		if err := s.join(ctx, client, group, pipelines); err != nil {
			return err
		}
	}
	return nil
}

// join consumes the topics that exist now, until they change or the session ends otherwise.
func (s *Source) join(ctx context.Context, client sarama.Client, group sarama.ConsumerGroup, pipelines *pipeline.Set) error {
	topics, err := s.discover(client)
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
	err = group.Consume(session, names(topics), &member{source: s, client: client, group: group, pipelines: pipelines, endSession: end})
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
func (s *Source) watchTopics(ctx context.Context, client sarama.Client, topics map[string]sarama.Uuid, end context.CancelCauseFunc) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if failing := s.health.QuietFor(3 * time.Second); !failing && time.Since(last) < s.cfg.DiscoverEvery {
			continue
		}
		last = time.Now()
		now, err := s.discover(client)
		if err != nil {
			s.health.Set(connector.Connection, s.cfg.withBrokers(err))
			continue
		}
		if !sameTopics(topics, now) {
			end(errTopicsChanged)
			return
		}
		if s.health.QuietFor(3 * time.Second) {
			s.reportHealthy()
		}
	}
}

// reportHealthy reports that the source is healthy unless topics are missing.
func (s *Source) reportHealthy() {
	s.mu.Lock()
	missing := s.missing
	s.mu.Unlock()
	if missing != nil {
		s.health.Set(connector.Connection, s.cfg.withBrokers(missing))
		return
	}
	s.health.Set(connector.Connection, nil)
}

// reportErrors reports the errors of a session.
func (s *Source) reportErrors(errs <-chan error) {
	for err := range errs {
		if errors.Is(err, sarama.ErrOffsetOutOfRange) || errors.Is(err, context.Canceled) {
			continue // checkGap handles an offset out of range at the next claim; Canceled is a stop
		}
		s.health.Set(connector.Connection, s.cfg.withBrokers(err))
	}
}

// discover returns the topics to read that exist, with their ids, and reports those that do not.
func (s *Source) discover(client sarama.Client) (map[string]sarama.Uuid, error) {
	broker := client.LeastLoadedBroker()
	if broker == nil {
		return nil, sarama.ErrOutOfBrokers
	}
	pattern, err := compilePattern(s.cfg.Pattern)
	if err != nil {
		return nil, err
	}
	// Without topics the request is for all of them.
	response, err := broker.GetMetadata(sarama.NewMetadataRequest(client.Config().Version, s.cfg.Topics))
	if err != nil {
		_ = broker.Close() // a broken connection stays with the broker until it is closed; the next use opens it again
		_ = client.RefreshBrokers(s.cfg.Brokers)
		return nil, err
	}
	found := make(map[string]sarama.Uuid)
	var missing []string
	var cause error
	for _, topic := range response.Topics {
		switch {
		case pattern != nil && (topic.IsInternal || !pattern.MatchString(topic.Name)):
		case topic.Err == sarama.ErrNoError || errors.Is(topic.Err, sarama.ErrLeaderNotAvailable):
			found[topic.Name] = topic.Uuid
		default:
			missing, cause = append(missing, topic.Name), topic.Err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(missing) > 0:
		slices.Sort(missing)
		s.missing = fmt.Errorf("cannot read topic %s: %w", strings.Join(missing, ", "), cause)
	case len(found) == 0:
		s.missing = fmt.Errorf("no topic matches %s", s.cfg.Pattern)
	default:
		s.missing = nil
	}
	if s.missing != nil {
		s.health.Set(connector.Connection, s.cfg.withBrokers(s.missing))
	}
	return found, nil
}

func names(topics map[string]sarama.Uuid) []string {
	var list []string
	for name := range topics {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// sameTopics compares names and ids: a topic that was deleted and created again is another topic.
func sameTopics(a, b map[string]sarama.Uuid) bool {
	if len(a) != len(b) {
		return false
	}
	for name, id := range a {
		if other, ok := b[name]; !ok || other != id {
			return false
		}
	}
	return true
}
