package registry

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

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Instance is what one process says of itself.
type Instance struct {
	// Name tells it from others.
	Name    string   `json:"name"`
	Roles   []string `json:"roles"`
	Version string   `json:"version,omitempty"`
	// Started is by its own clock.
	Started time.Time `json:"started"`
	// Revision of the registry that its engine matches by. Only with the role engine; 0 before the first.
	Revision int64 `json:"revision,omitempty"`
	// Partitions of buses' topics that its engine owns, by bus.
	Partitions map[string][]int `json:"partitions,omitempty"`
	// Seen is when this process last heard of it. Set by the reader.
	Seen time.Time `json:"seen"`
}

const (
	// heartbeatEvery is how often an instance says that it is there, expireAfter when others take it for gone.
	heartbeatEvery = 5 * time.Second
	expireAfter    = 20 * time.Second
	// changeAfter gathers what changes within moments into one message.
	changeAfter = 100 * time.Millisecond
	// refreshEvery is how often the state of a subscriber that does not change is told again: whoever starts reads no further
	// back.
	refreshEvery = 5 * time.Minute
	// stateEvery bounds how often one subscriber's state is told, statesAtOnce how many states are told within changeAfter: 200
	// a second.
	stateEvery   = heartbeatEvery
	statesAtOnce = 20
	// maxStates and MaxStateBytes bound what an instance tells, and what is kept of each instance.
	maxStates    = MaxSubscribers
	maxInstances = 1000
	// MaxStateBytes bounds the state of one subscriber.
	MaxStateBytes = 2048
)

// StatusOptions say who an instance is.
type StatusOptions struct {
	Instance string // must be set, and differ from that of other processes
	Roles    []string
	Version  string
	Log      *zap.Logger // default: nowhere
}

// Status tells other instances what this one does, and knows what they do, by a topic that all of them write and read. It is
// not exact: who is gone is missed after 20 seconds. All methods are safe for concurrent use.
type Status struct {
	client *messaging.Client
	topic  string
	log    *zap.Logger
	wake   chan struct{}
	now    func() time.Time // with the monotonic clock

	mu    sync.Mutex
	own   Instance
	dirty bool // own has changed since it was told
	told  map[string]*ownState
	board board
}

// ownState is what this instance has to tell of a subscriber.
type ownState struct {
	state []byte // nil: it has none any more
	dirty bool
	at    time.Time // when it was told
}

// NewStatus makes one. Run works for it.
func NewStatus(client *messaging.Client, topics Topics, opts StatusOptions) (*Status, error) {
	if opts.Instance == "" || strings.Contains(opts.Instance, "/") || len(opts.Instance) > 255 {
		return nil, fmt.Errorf("the name of the instance must have 1 to 255 bytes and no /, got %s", quote(opts.Instance))
	}
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	return &Status{
		client: client, topic: topics.Status(), log: opts.Log.Named("status"), wake: make(chan struct{}, 1), now: time.Now,
		own:   Instance{Name: opts.Instance, Roles: opts.Roles, Version: opts.Version, Started: now()},
		dirty: true, told: make(map[string]*ownState), board: newBoard(),
	}, nil
}

// SetRevision says by which revision of the registry this instance's engine matches now.
func (s *Status) SetRevision(revision int64) {
	s.set(func() bool {
		changed := s.own.Revision != revision
		s.own.Revision = revision
		return changed
	})
}

// SetPartitions says which partitions of a bus' topic this instance's engine owns now.
func (s *Status) SetPartitions(bus string, partitions []int) {
	s.set(func() bool {
		if slices.Equal(s.own.Partitions[bus], partitions) {
			return false
		}
		made := maps.Clone(s.own.Partitions) // the old one may be shown
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

// SetState says how this instance's deliveries to a subscriber stand, as JSON of at most [MaxStateBytes]; nil takes it back. A
// change is told at once, but no two within 5 seconds. The bytes must not be changed afterwards.
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
	known := s.told[key]
	switch {
	case known == nil && state == nil:
		return nil
	case known == nil && len(s.told) >= maxStates:
		return fmt.Errorf("there are %d states already, as many as there can be", maxStates)
	case known == nil:
		s.told[key] = &ownState{state: state, dirty: true}
	case string(known.state) == string(state) && (known.state == nil) == (state == nil):
		return nil
	default:
		known.state, known.dirty = state, true
	}
	s.wakeUp()
	return nil
}

func stateKey(bus, name string) string { return bus + "/" + name }

// Instances are those that were heard of lately, by name, this one among them.
func (s *Status) Instances() []Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.board.instances(s.now())
}

// States returns what instances say of a subscriber, by their names.
func (s *Status) States(bus, name string) map[string]json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.board.states(s.now(), stateKey(bus, name))
}

// Active reports whether all engines match by a revision, or a later one, and which instances do not yet. Without any engine
// it is not active.
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

// Run tells and reads until ctx ends; then it says that the instance is gone. It returns ctx's error, or one that no waiting
// helps.
func (s *Status) Run(ctx context.Context) error {
	both, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	all.Go(func() { cancel(s.read(both)) })
	err := s.tell(both)
	cancel(err)
	all.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return context.Cause(both)
}

// read reads what instances tell.
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
		s.board.take(s.now(), d, !ended(r.CaughtUp()))
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

// statusProfile drops what does not get through: it is told again.
func statusProfile() messaging.Profile {
	p := messaging.Business()
	p.Name, p.Admission, p.MaxPendingRecords, p.AckTimeout = "status", messaging.FailFast, 4*statesAtOnce, 10*time.Second
	return p
}

// tell tells what this instance does.
func (s *Status) tell(ctx context.Context) error {
	if err := s.client.Topic(s.topic).Create(ctx, 0); err != nil && !errors.Is(err, messaging.ErrNoAdminURL) && !errors.Is(err, messaging.ErrExists) {
		s.log.Info("cannot make the status topic by the admin API: the broker makes it, if it does so", zap.Error(err))
	}
	p, err := s.client.Publisher(ctx, s.topic, statusProfile())
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), heartbeatEvery)
		defer cancel()
		_ = p.Publish(closing, &messaging.Record{Key: s.own.Name, Payload: []byte(`{"format":1,"gone":true}`)}) // others see it in 20 s
		_ = p.Close(closing)                                                                                    // the same
	}()
	return s.tellAlways(ctx, p)
}

// asyncPublisher is a *messaging.Publisher.
type asyncPublisher interface {
	PublishAsync(ctx context.Context, r *messaging.Record, done func(messaging.MessageID, error))
}

// tellAlways tells until ctx ends.
func (s *Status) tellAlways(ctx context.Context, p asyncPublisher) error {
	heartbeat := time.NewTicker(heartbeatEvery)
	defer heartbeat.Stop()
	for beat := true; ; {
		rest := s.tellOnce(ctx, p, beat)
		if !wait(ctx, changeAfter) {
			return ctx.Err()
		}
		if beat = false; rest {
			select { // states may take longer than others wait for a heartbeat
			case <-heartbeat.C:
				beat = true
			default:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-heartbeat.C:
			beat = true
		case <-s.wake:
		}
	}
}

// wait waits d, and reports whether ctx lives.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// tellOnce publishes what has changed, and what is to be told again, without waiting for an answer. rest says that there is more.
func (s *Status) tellOnce(ctx context.Context, p asyncPublisher, beat bool) (rest bool) {
	records, rest := s.news(beat)
	for _, r := range records {
		p.PublishAsync(ctx, r, func(_ messaging.MessageID, err error) {
			if err != nil {
				s.untold(r.Key)
			}
		})
	}
	return rest
}

// news are the records to publish, taken for told.
func (s *Status) news(beat bool) (records []*messaging.Record, rest bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.now()
	if beat || s.dirty {
		s.dirty = false
		records = append(records, statusRecord(s.own.Name, statusMessage{Instance: &s.own}))
	}
	states := 0
	for key, state := range s.told {
		age := at.Sub(state.at)
		if !(state.dirty && age >= stateEvery || state.state != nil && age >= refreshEvery) {
			continue
		}
		if states++; states > statesAtOnce {
			return records, true
		}
		if state.state == nil {
			delete(s.told, key)
		}
		state.dirty, state.at = false, at
		records = append(records, statusRecord(s.own.Name+"/"+key, statusMessage{State: state.state}))
	}
	return records, false
}

// untold has something told again that was not stored.
func (s *Status) untold(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, key, ok := strings.Cut(key, "/"); !ok {
		s.dirty = true
	} else if state := s.told[key]; state != nil {
		state.dirty = true
	}
}

// statusMessage is the value of a message of the status topic. Its key is the instance's name, or that, a bus and a subscriber.
type statusMessage struct {
	Format   int             `json:"format"`
	Instance *Instance       `json:"instance,omitempty"`
	Gone     bool            `json:"gone,omitempty"`
	State    json.RawMessage `json:"state,omitempty"`
}

func statusRecord(key string, m statusMessage) *messaging.Record {
	m.Format = formatVersion
	payload, _ := json.Marshal(m) // states are JSON, the rest is ours
	return &messaging.Record{Key: key, Payload: payload}
}
