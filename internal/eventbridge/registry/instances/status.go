// Package instances tells the instances of Eventbridge what each of them does, through a topic that
// all of them write and read: its roles, the revision that it matches by, and the states of its
// subscribers.
package instances

import (
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
	// changeAfter is how long changes are collected into one message.
	changeAfter = 100 * time.Millisecond
	// refreshEvery is how often the state of a subscriber that does not change is published again:
	// a process that starts reads no further back.
	refreshEvery = 5 * time.Minute
	// stateEvery bounds how often one subscriber's state is published, statesAtOnce how many states
	// are published within changeAfter: 200 a second.
	stateEvery   = heartbeatEvery
	statesAtOnce = 20
	// maxStates and MaxStateBytes bound what an instance publishes, and what is kept of each
	// instance.
	maxStates    = model.MaxSubscribers
	maxInstances = 1000
	// MaxStateBytes bounds the state of one subscriber.
	MaxStateBytes = 2048
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

	mu             sync.Mutex
	own            Instance
	dirty          bool // own has changed since it was published
	published      map[string]*ownState
	knownInstances knownInstances
}

// ownState is the state of a subscriber that this instance publishes.
type ownState struct {
	state []byte // nil: it has none any more
	dirty bool
	at    time.Time // when it was published
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
		own:   Instance{Name: opts.Instance, Roles: opts.Roles, Version: opts.Version, Started: instant()},
		dirty: true, published: make(map[string]*ownState), knownInstances: newKnownInstances(),
	}, nil
}

// SetRevision sets the revision of the registry by which this instance's engine matches.
func (s *Status) SetRevision(revision int64) {
	s.set(func() bool {
		changed := s.own.Revision != revision
		s.own.Revision = revision
		return changed
	})
}

// SetPartitions sets the partitions of a bus' topic that this instance's engine owns.
func (s *Status) SetPartitions(bus string, partitions []int) {
	s.set(func() bool {
		if slices.Equal(s.own.Partitions[bus], partitions) {
			return false
		}
		made := maps.Clone(s.own.Partitions) // the old one may still be in use
		if made == nil {
			made = make(map[string][]int)
		}
		made[bus] = slices.Clone(partitions)
		if len(partitions) == 0 {
			delete(made, bus)
		}
		s.own.Partitions = made
		return true
	})
}

func (s *Status) set(change func() bool) {
	s.mu.Lock()
	s.dirty = change() || s.dirty
	s.mu.Unlock()
	s.wakeUp()
}

func (s *Status) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// SetState sets the state of this instance's deliveries to a subscriber: JSON of at most
// [MaxStateBytes]; nil removes it. A change is published at once, but no two changes within 5
// seconds. The bytes must not be changed afterwards.
func (s *Status) SetState(bus, name string, state []byte) error {
	key := stateKey(bus, name)
	switch {
	case len(state) > MaxStateBytes:
		return fmt.Errorf("the state of a subscriber must have at most %d bytes, got %d", MaxStateBytes, len(state))
	case state != nil && !json.Valid(state):
		return errors.New("the state of a subscriber must be JSON")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.published[key]
	switch {
	case known == nil && state == nil:
		return nil
	case known == nil && len(s.published) >= maxStates:
		return fmt.Errorf("there are %d states already, which is the maximum", maxStates)
	case known == nil:
		s.published[key] = &ownState{state: state, dirty: true}
	case string(known.state) == string(state) && (known.state == nil) == (state == nil):
		return nil
	default:
		known.state, known.dirty = state, true
	}
	s.wakeUp()
	return nil
}

func stateKey(bus, name string) string { return bus + "/" + name }

// Instances returns the instances that have published lately, by name, including this one.
func (s *Status) Instances() []Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.knownInstances.instances(s.now())
}

// States returns what instances report about a subscriber, by the names of the instances.
func (s *Status) States(bus, name string) map[string]json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.knownInstances.states(s.now(), stateKey(bus, name))
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
	both, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	all.Go(func() { cancel(s.read(both)) })
	err := s.publish(both)
	cancel(err)
	all.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return context.Cause(both)
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
		s.knownInstances.take(s.now(), d, !ended(r.CaughtUp()))
		s.mu.Unlock()
	}
}

func ended(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// statusProfile drops what cannot be published at once: Status publishes it again later.
func statusProfile() messaging.Profile {
	p := messaging.Business()
	p.Name, p.Admission, p.MaxPendingRecords, p.AckTimeout = "status", messaging.FailFast, 4*statesAtOnce, 10*time.Second
	return p
}

// publish publishes what this instance does, until ctx ends.
func (s *Status) publish(ctx context.Context) error {
	if err := s.client.Topic(s.topic).Create(ctx, 0); err != nil && ctx.Err() == nil && !errors.Is(err, messaging.ErrNoAdminURL) && !errors.Is(err, messaging.ErrExists) {
		s.log.Info("cannot create the status topic with the admin API: the broker creates it, if it creates topics by itself", zap.Error(err))
	}
	p, err := s.client.Publisher(ctx, s.topic, statusProfile())
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), heartbeatEvery)
		defer cancel()
		_ = p.Publish(closing, &messaging.Record{Key: s.own.Name, Payload: []byte(`{"format":1,"gone":true}`)}) // without it, others see that after 20 s
		_ = p.Close(closing)                                                                                    // the same
	}()
	return s.publishLoop(ctx, p)
}

// asyncPublisher is a *messaging.Publisher.
type asyncPublisher interface {
	PublishAsync(ctx context.Context, r *messaging.Record, done func(messaging.MessageID, error))
}

// publishLoop publishes changes and heartbeats until ctx ends.
func (s *Status) publishLoop(ctx context.Context, p asyncPublisher) error {
	ticker := time.NewTicker(heartbeatEvery)
	defer ticker.Stop()
	for due := true; ; {
		rest := s.publishChanges(ctx, p, due)
		if !backoff.Sleep(ctx, changeAfter) {
			return ctx.Err()
		}
		if due = false; rest {
			select { // states may take longer than others wait for a heartbeat
			case <-ticker.C:
				due = true
			default:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
			due = true
		case <-s.wake:
		}
	}
}

// publishChanges publishes what has changed, or is due again. It does not wait for
// acknowledgements. rest says that there is more.
func (s *Status) publishChanges(ctx context.Context, p asyncPublisher, heartbeat bool) (rest bool) {
	records, rest := s.changes(heartbeat)
	for _, r := range records {
		p.PublishAsync(ctx, r, func(_ messaging.MessageID, err error) {
			if err != nil {
				s.markUnpublished(r.Key)
			}
		})
	}
	return rest
}

// changes returns the records to publish and marks them as published.
func (s *Status) changes(heartbeat bool) (records []*messaging.Record, rest bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.now()
	if heartbeat || s.dirty {
		s.dirty = false
		records = append(records, statusRecord(s.own.Name, statusMessage{Instance: &s.own}))
	}
	states := 0
	for key, state := range s.published {
		age := at.Sub(state.at)
		if !(state.dirty && age >= stateEvery || state.state != nil && age >= refreshEvery) {
			continue
		}
		if states++; states > statesAtOnce {
			return records, true
		}
		if state.state == nil {
			delete(s.published, key)
		}
		state.dirty, state.at = false, at
		records = append(records, statusRecord(s.own.Name+"/"+key, statusMessage{State: state.state}))
	}
	return records, false
}

// markUnpublished marks a record that was not stored, so that it is published again.
func (s *Status) markUnpublished(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, key, ok := strings.Cut(key, "/"); !ok {
		s.dirty = true
	} else if state := s.published[key]; state != nil {
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

// instant returns the time in milliseconds, as in messages.
func instant() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
