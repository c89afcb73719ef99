package sonic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// ClusterStatus is the state of the zone's Redis Cluster.
type ClusterStatus struct {
	// Primaries are those that have slots.
	Primaries []PrimaryStatus `json:"primaries"`
	// UnservedSlots is how many slots have no primary, or one that cannot be reached: commands for
	// them get errors.
	UnservedSlots int `json:"unserved_slots"`
	// Unhealthy says which slots are not served, and why.
	Unhealthy string `json:"unhealthy,omitempty"`
}

// PrimaryStatus is the state of one primary of a Redis Cluster.
type PrimaryStatus struct {
	Address string `json:"address"`
	Slots   int    `json:"slots"`
	// Unhealthy is why the primary cannot be reached. NotReady is why it takes no writes; it is empty
	// if the zone is alone.
	Unhealthy string `json:"unhealthy,omitempty"`
	NotReady  string `json:"not_ready,omitempty"`
}

// clusterState is what is known of the zone's Redis Cluster: which slots are served, and, if the zone
// is not alone, which primaries take writes and what their streams of effects hold. Every Sonic of the
// zone asks them. It is safe for concurrent use.
type clusterState struct {
	cluster interface {
		Map() *cluster.Map
		Err() error
	}
	unreachable func() map[string]error            // by address of a primary
	primary     func(address string) *redis.Client // nil: the zone is alone
	memory      *memory                            // of the primaries

	mu       sync.Mutex
	problems map[string]error // by address: why a primary takes no writes; nil: it does
}

// errNoMap says that no node of the cluster has answered yet.
var errNoMap = errors.New("no node of the Redis Cluster has answered yet")

// problem returns how many slots are not served, and why, by primary.
func (c *clusterState) problem() (unserved int, err error) {
	m := c.cluster.Map()
	if m == nil {
		return cluster.Slots, errors.Join(errNoMap, c.cluster.Err())
	}
	var errs []error
	unreachable := c.unreachable()
	for _, p := range m.Primaries() {
		if why := unreachable[p.Address]; why != nil {
			slots := m.Count(p.Address)
			unserved += slots
			errs = append(errs, fmt.Errorf("primary %s, which has %d slots, cannot be reached: %w", p.Address, slots, why))
		}
	}
	if none := m.Count(""); none > 0 {
		unserved += none
		errs = append(errs, fmt.Errorf("%d slots have no primary", none))
	}
	return unserved, errors.Join(errs...)
}

// ready is the readiness check. A cluster that is down in part is ready: its other slots are served,
// and another Sonic of the zone could not serve more.
func (c *clusterState) ready() error {
	unserved, err := c.problem()
	if unserved < cluster.Slots {
		return nil
	}
	return err
}

// status returns the state for people.
func (c *clusterState) status() *ClusterStatus {
	unserved, err := c.problem()
	s := &ClusterStatus{Primaries: []PrimaryStatus{}, UnservedSlots: unserved, Unhealthy: text(err)}
	if m := c.cluster.Map(); m != nil {
		unreachable, notReady := c.unreachable(), c.notReady()
		for _, p := range m.Primaries() {
			s.Primaries = append(s.Primaries, PrimaryStatus{
				Address: p.Address, Slots: m.Count(p.Address), Unhealthy: text(unreachable[p.Address]), NotReady: text(notReady[p.Address]),
			})
		}
	}
	return s
}

// stateInterval is how often watch looks at the state of the cluster.
const stateInterval = time.Second

// watch logs until ctx ends which slots are not served, and which primaries take no writes.
func (c *clusterState) watch(ctx context.Context, state, writes *health.State) error {
	for backoff.Sleep(ctx, stateInterval) {
		_, err := c.problem()
		state.Set(err)
		writes.Set(writeProblems(c.notReady()))
	}
	return nil
}

// measure asks all primaries. Each may hold an equal part of the bytes: the outbox is full if one of
// them holds more. The error is that of the primaries if none answers.
func (c *clusterState) measure(ctx context.Context, cfg OutboxConfig) (measurement, error) {
	m := c.cluster.Map()
	if m == nil {
		return measurement{}, errNoMap
	}
	all := m.Primaries()
	states, ages, errs := make([]redislib.PrimaryState, len(all)), make([]time.Duration, len(all)), make([]error, len(all))
	var asking sync.WaitGroup
	for i, p := range all {
		asking.Go(func() {
			states[i], errs[i] = redislib.LookPrimary(ctx, c.primary(p.Address))
			ages[i] = states[i].Age(ctx, c.primary(p.Address))
			if info, err := c.primary(p.Address).Info(ctx, "memory").Result(); err == nil {
				c.memory.update(p.Address, infoOf(info))
			}
		})
	}
	asking.Wait()
	c.memory.keep(m.Addresses())
	total := unknownMeasurement(false)
	total.Bytes, total.Age = 0, 0
	answers, problems := 0, map[string]error{}
	for i, p := range all {
		problems[p.Address] = primaryProblem(states[i], errs[i])
		if errs[i] == nil {
			answers++
			total.Bytes += states[i].Bytes
			if ages[i] < 0 || total.Age < 0 {
				total.Age = -time.Second // not known
			} else {
				total.Age = max(total.Age, ages[i])
			}
			total.full = total.full || states[i].Bytes > int64(cfg.Bytes)/int64(len(all))
		}
	}
	c.mu.Lock()
	c.problems = problems
	c.mu.Unlock()
	if answers == 0 {
		return measurement{}, errors.Join(errs...)
	}
	return total, nil
}

// primaryProblem returns why a primary takes no writes, nil if it does.
func primaryProblem(state redislib.PrimaryState, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("it is not known whether it takes writes: %w", err)
	case !state.Opened:
		return errors.New("no Sonic has opened it yet: the owner of the topic does; /zones has the reason if it cannot")
	case !state.Ready:
		slices.Sort(state.Recovering)
		return fmt.Errorf("it may have older data than before: it waits for effects of the zones %s", strings.Join(state.Recovering, ", "))
	default:
		return nil
	}
}

// notReady returns why primaries take no writes, by address. Those that do are not in it.
func (c *clusterState) notReady() map[string]error {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[string]error{}
	for address, err := range c.problems {
		if err != nil {
			found[address] = err
		}
	}
	return found
}

// checkAny returns nil if a primary takes writes, otherwise why none does.
func (c *clusterState) checkAny() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.problems) == 0 {
		return errors.New("it is not known yet whether the primaries take writes")
	}
	for _, err := range c.problems {
		if err == nil {
			return nil
		}
	}
	return writeProblems(c.problems)
}

// writeProblems returns one error for primaries that take no writes.
func writeProblems(problems map[string]error) error {
	var errs []error
	for _, address := range slices.Sorted(maps.Keys(problems)) {
		errs = append(errs, fmt.Errorf("primary %s takes no writes: %w", address, problems[address]))
	}
	return errors.Join(errs...)
}
