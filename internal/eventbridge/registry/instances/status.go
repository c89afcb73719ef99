// Package instances shares the state of each instance of Eventbridge over one topic: its roles,
// the revision by which its engine matches, and the states of its subscribers. Of Eventbridge, it
// imports only registry/model.
package instances

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Instance is what one process publishes about itself.
type Instance struct {
	// Name identifies the process.
	Name    string   `json:"name"`
	Roles   []string `json:"roles"`
	Version string   `json:"version,omitempty"`
	// Started is by the process' own clock.
	Started time.Time `json:"started"`
	// Revision is the revision of the registry that its engine matches by. Only with the role
	// engine; 0 before the first.
	Revision int64 `json:"revision,omitempty"`
	// Partitions are the partitions of buses' topics that its engine owns, by bus.
	Partitions map[string][]int `json:"partitions,omitempty"`
	// Seen is when this process last received a heartbeat of it. Set by the reader.
	Seen time.Time `json:"seen"`
}

const (
	// heartbeatEvery is how often an instance publishes a heartbeat. After expireAfter without one,
	// others consider it stopped.
	heartbeatEvery = 5 * time.Second
	expireAfter    = 20 * time.Second
	// changeAfter is how long changes of revision and partitions are collected into one message.
	changeAfter = 100 * time.Millisecond
	// statesEvery is how often changed states of subscribers are published, statesPerSecond how many
	// of them: all subscribers may change at once. No state is published twice within stateEvery.
	statesEvery     = time.Second
	statesPerSecond = 200
	stateEvery      = heartbeatEvery
	// refreshEvery is how often the state of a subscriber that does not change is published again:
	// a process that starts reads no further back.
	refreshEvery = 5 * time.Minute
)

// StatusOptions describe this instance.
type StatusOptions struct {
	Instance string // must be set, and differ from that of other processes
	Roles    []string
	Version  string
	Log      *zap.Logger // default: nothing is logged
}

// statusFormat is the version of the format of messages.
const statusFormat = 1

// Status publishes what this instance does, and reads what others do. It is not exact: an instance
// that has stopped is listed for up to 20 seconds. All methods are safe for concurrent use.
type Status struct {
	client *messaging.Client
	topic  string
	log    *zap.Logger
	wake   chan struct{}
	now    func() time.Time // with the monotonic clock

	mu        sync.Mutex
	own       Instance
	published map[string]*ownState // by BUS/NAME
	known     instanceTable
}

// ownState is the state of a subscriber that this instance publishes.
type ownState struct {
	state []byte    // nil: it has none any more
	dirty bool      // it has changed since it was published
	at    time.Time // when it was published
}

// due reports whether the state is to be published.
func (s *ownState) due(now time.Time) bool {
	age := now.Sub(s.at)
	return s.dirty && age >= stateEvery || s.state != nil && age >= refreshEvery
}

// NewStatus makes a Status. Run publishes and reads for it.
func NewStatus(client *messaging.Client, topics model.Topics, opts StatusOptions) (*Status, error) {
	if opts.Instance == "" || strings.Contains(opts.Instance, "/") || len(opts.Instance) > 255 {
		return nil, fmt.Errorf("the name of the instance must have 1 to 255 bytes and no /, got %s", model.Quote(opts.Instance))
	}
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	return &Status{
		client: client, topic: topics.Status(), log: opts.Log.Named("status"), wake: make(chan struct{}, 1), now: time.Now,
		own:       Instance{Name: opts.Instance, Roles: opts.Roles, Version: opts.Version, Started: time.Now().UTC().Truncate(time.Millisecond)},
		published: make(map[string]*ownState), known: make(instanceTable),
	}, nil
}

// SetRevision sets the revision of the registry by which this instance's engine matches.
func (s *Status) SetRevision(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own.Revision != revision {
		s.own.Revision = revision
		s.wakeUp()
	}
}

// SetPartitions sets the partitions of a bus' topic that this instance's engine owns.
func (s *Status) SetPartitions(bus string, partitions []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(s.own.Partitions[bus], partitions) {
		return
	}
	made := make(map[string][]int) // the old one may still be in use
	maps.Copy(made, s.own.Partitions)
	made[bus] = slices.Clone(partitions)
	if len(partitions) == 0 {
		delete(made, bus)
	}
	s.own.Partitions = made
	s.wakeUp()
}

func (s *Status) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// SetState sets the state of this instance's deliveries to a subscriber, as JSON; nil removes it. A
// change is published within a second, but no two changes within 5 seconds. The bytes must not be
// changed afterwards.
func (s *Status) SetState(bus, name string, state []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := stateKey(bus, name)
	known := s.published[key]
	if known == nil {
		known = new(ownState)
	}
	if !bytes.Equal(known.state, state) {
		known.state, known.dirty = state, true
		s.published[key] = known
	}
}

func stateKey(bus, name string) string { return bus + "/" + name }

// Instances returns the instances that have published lately, by name, including this one.
func (s *Status) Instances() []Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known.instances(s.now())
}

// States returns what instances report about a subscriber, by the names of the instances.
func (s *Status) States(bus, name string) map[string]json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known.states(s.now(), stateKey(bus, name))
}

// Active reports whether all engines match by this revision or a later one, and which engines do
// not yet. Without any engine it is false.
func (s *Status) Active(revision int64) (active bool, behind []string) {
	engines := 0
	for _, i := range s.Instances() {
		if !slices.Contains(i.Roles, "engine") {
			continue
		}
		engines++
		if i.Revision < revision {
			behind = append(behind, i.Name)
		}
	}
	return engines > 0 && len(behind) == 0, behind
}

// Run publishes and reads until ctx ends; then it publishes that the instance has stopped. It
// returns ctx's error, or one that is permanent.
func (s *Status) Run(ctx context.Context) error {
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return s.read(ctx) })
	both.Go(func() error { return s.publish(ctx) })
	return both.Wait()
}

// read reads what instances publish.
func (s *Status) read(ctx context.Context) error {
	from := messaging.AtTime(time.Now().Add(-refreshEvery - 2*heartbeatEvery))
	r, err := s.client.Reader(ctx, messaging.ReaderConfig{
		Topic: s.topic, Name: "status", From: &from, PrefetchBytes: 4 << 20, MaxMessageBytes: 4 << 10,
	})
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), heartbeatEvery)
		defer cancel()
		_ = r.Close(closing) // nothing of it is needed any more
	}()
	for {
		d, err := r.Next(ctx)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.known.take(s.now(), d)
		s.mu.Unlock()
	}
}

// statusProfile drops what cannot be published at once: Status publishes it again later.
func statusProfile() messaging.Profile {
	p := messaging.Business()
	p.Name, p.Admission, p.MaxPendingRecords, p.AckTimeout = "status", messaging.FailFast, 100, 10*time.Second
	return p
}

// publish publishes what this instance does, until ctx ends.
func (s *Status) publish(ctx context.Context) error {
	if err := s.client.Topic(s.topic).Create(ctx, 0); err != nil && ctx.Err() == nil && !errors.Is(err, messaging.ErrNoAdminURL) && !errors.Is(err, messaging.ErrExists) {
		s.log.Info("cannot create the status topic with the admin API: the broker may create it", zap.Error(err))
	}
	p, err := s.client.Publisher(ctx, s.topic, statusProfile())
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), heartbeatEvery)
		defer cancel()
		_ = p.Publish(closing, statusRecord(s.own.Name, statusMessage{Gone: true})) // without it, others see that after 20 s
		_ = p.Close(closing)                                                        // the same
	}()
	return s.publishWith(ctx, p)
}

// asyncPublisher is a *messaging.Publisher.
type asyncPublisher interface {
	PublishAsync(ctx context.Context, r *messaging.Record, done func(messaging.MessageID, error))
}

// publishWith publishes heartbeats and states until ctx ends. States may take longer than others
// wait for a heartbeat.
func (s *Status) publishWith(ctx context.Context, p asyncPublisher) error {
	var states sync.WaitGroup
	states.Go(func() { s.publishStates(ctx, p) })
	defer states.Wait()
	ticker := time.NewTicker(heartbeatEvery)
	defer ticker.Stop()
	for {
		s.mu.Lock()
		heartbeat := statusRecord(s.own.Name, statusMessage{Instance: &s.own})
		s.mu.Unlock()
		p.PublishAsync(ctx, heartbeat, func(messaging.MessageID, error) {}) // the next one repeats it
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		case <-s.wake:
			backoff.Sleep(ctx, changeAfter)
		}
	}
}

// publishStates publishes the states of subscribers that have changed, or are due again.
func (s *Status) publishStates(ctx context.Context, p asyncPublisher) {
	limit := rate.NewLimiter(statesPerSecond, statesPerSecond/10)
	for ctx.Err() == nil {
		for _, key := range s.dueStates() {
			if limit.Wait(ctx) != nil {
				return
			}
			p.PublishAsync(ctx, s.stateRecord(key), func(_ messaging.MessageID, err error) {
				if err != nil {
					s.markUnpublished(key)
				}
			})
		}
		backoff.Sleep(ctx, statesEvery)
	}
}

func (s *Status) dueStates() (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, state := range s.published {
		if state.due(s.now()) {
			keys = append(keys, key)
		}
	}
	return keys
}

// stateRecord returns the record of a state, and marks it as published. Only publishStates removes
// states.
func (s *Status) stateRecord(key string) *messaging.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.published[key]
	if state.state == nil {
		delete(s.published, key)
	}
	state.dirty, state.at = false, s.now()
	return statusRecord(s.own.Name+"/"+key, statusMessage{State: state.state})
}

// markUnpublished marks a state that was not stored, so that it is published again.
func (s *Status) markUnpublished(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state := s.published[key]; state != nil {
		state.dirty = true
	}
}

// statusMessage is the value of a message of the status topic. Its key is the instance's name, or
// the name, a bus and a subscriber.
type statusMessage struct {
	Format   int             `json:"format"`
	Instance *Instance       `json:"instance,omitempty"`
	Gone     bool            `json:"gone,omitempty"`
	State    json.RawMessage `json:"state,omitempty"`
}

func statusRecord(key string, m statusMessage) *messaging.Record {
	m.Format = statusFormat
	payload, _ := json.Marshal(m) // states are JSON, the rest is ours
	return &messaging.Record{Key: key, Payload: payload}
}
