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

	"github.com/aviaryhq/aviary/internal/connector/lane"
)

// Source reads topics as a member of a consumer group.
type Source struct {
	cfg    SourceConfig
	log    *zap.Logger
	health *health
	gaps   *prometheus.CounterVec
	// patience ends when a stop must not wait any longer.
	patience context.Context

	mu      sync.Mutex
	client  sarama.Client           // nil while there is no connection
	missing error                   // topics that do not exist
	claims  map[*claimed]struct{}   // the partitions that this process has at present
	open    atomic.Int64            // how many they are
	kinds   map[string]topicSetting // what is known of topics
}

// NewSource makes a source. It connects to nothing: see Run. Its error is that of Validate.
func NewSource(cfg SourceConfig, o Options) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	return &Source{
		cfg:      cfg,
		log:      o.Log,
		health:   &health{report: o.Report},
		gaps:     o.Metrics.gaps,
		patience: o.Patience,
		claims:   make(map[*claimed]struct{}),
		kinds:    make(map[string]topicSetting),
	}, nil
}

var errTopicsChanged = errors.New("the topics to read have changed")

// Run reads until ctx ends, then gives its partitions up in good order and returns nil. It connects again, for ever, when the connection is lost. The
// one error that it returns is a *GapError, with on_gap fail. It is called once.
func (s *Source) Run(ctx context.Context, lanes *lane.Set) error {
	var pause backoff
	for {
		began := time.Now()
		err := s.connect(ctx, lanes)
		var gap *GapError
		if errors.As(err, &gap) {
			s.health.trouble(s.cfg.trouble(err))
			return err
		}
		if ctx.Err() == nil && err != nil {
			s.health.trouble(s.cfg.trouble(err))
		}
		if time.Since(began) > time.Minute {
			pause.reset()
		}
		if !pause.wait(ctx) {
			return nil
		}
	}
}

// connect reads over one connection.
func (s *Source) connect(ctx context.Context, lanes *lane.Set) (err error) {
	_, inFlight := lanes.Bounds()
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
	listeners.Go(func() { s.listen(group.Errors()) })
	defer func() {
		_ = group.Close() // leaving the group fails when the broker is away; the group then notices by itself
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
		if err := s.join(ctx, client, group, lanes); err != nil {
			return err
		}
	}
	return nil
}

// join reads the topics that there are now, until they change or the session ends otherwise.
func (s *Source) join(ctx context.Context, client sarama.Client, group sarama.ConsumerGroup, lanes *lane.Set) error {
	topics, err := s.discover(client)
	if err != nil {
		return err
	}
	session, end := context.WithCancelCause(ctx)
	defer end(nil)
	if len(topics) == 0 {
		s.await(session, client, topics, end)
		return nil
	}
	var watch sync.WaitGroup
	watch.Go(func() { s.await(session, client, topics, end) })
	err = group.Consume(session, names(topics), &member{source: s, client: client, group: group, lanes: lanes, end: end})
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
	// The session ended by itself: a broker is away, or the group has dropped this member.
	var pause backoff
	pause.wait(ctx)
	return nil
}

// await ends the session when the topics have changed. It also notices that trouble is over.
func (s *Source) await(ctx context.Context, client sarama.Client, topics map[string]sarama.Uuid, end context.CancelCauseFunc) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if troubled := s.health.quietFor(3 * time.Second); !troubled && time.Since(last) < s.cfg.DiscoverEvery {
			continue
		}
		last = time.Now()
		now, err := s.discover(client)
		if err != nil {
			s.health.trouble(s.cfg.trouble(err))
			continue
		}
		if !sameTopics(topics, now) {
			end(errTopicsChanged)
			return
		}
		if s.health.quietFor(3 * time.Second) {
			s.well()
		}
	}
}

// well reports that all is well unless topics are missing.
func (s *Source) well() {
	s.mu.Lock()
	missing := s.missing
	s.mu.Unlock()
	if missing != nil {
		s.health.trouble(s.cfg.trouble(missing))
		return
	}
	s.health.well()
}

// listen reports what goes wrong within a session.
func (s *Source) listen(errs <-chan error) {
	for err := range errs {
		if errors.Is(err, sarama.ErrOffsetOutOfRange) || errors.Is(err, context.Canceled) {
			continue // what the one means is found out when the claim is made anew; the other is a stop
		}
		s.health.trouble(s.cfg.trouble(err))
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
		s.health.trouble(s.cfg.trouble(s.missing))
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

// sameTopics also tells a topic from another of its name that was made after it was deleted.
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
