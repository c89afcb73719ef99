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

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
)

// primaryStates is what the primaries of a Redis Cluster say of the function library: whether they
// take writes, and what their streams of effects hold. Every Sonic of the zone asks them. It is safe
// for concurrent use.
type primaryStates struct {
	primaries interface { // see primaries.Primaries
		Map() *cluster.Map
		At(address string) *redis.Client
	}

	mu       sync.Mutex
	problems map[string]error // by address: why a primary takes no writes; nil: it does
}

// measure asks all primaries. Each may hold an equal part of the bytes: the outbox is full if one of
// them holds more. The error is that of the primaries if none answers.
func (s *primaryStates) measure(ctx context.Context, cfg OutboxConfig) (measurement, error) {
	m := s.primaries.Map()
	if m == nil {
		return measurement{}, errNoMap
	}
	all := m.Primaries()
	states, errs := make([]redislib.PrimaryState, len(all)), make([]error, len(all))
	var asking sync.WaitGroup
	for i, p := range all {
		asking.Go(func() { states[i], errs[i] = redislib.LookPrimary(ctx, s.primaries.At(p.Address)) })
	}
	asking.Wait()
	total := unknownMeasurement(false)
	total.Bytes, total.Age = 0, -time.Second
	answers, problems := 0, map[string]error{}
	for i, p := range all {
		problems[p.Address] = primaryProblem(states[i], errs[i])
		if errs[i] == nil {
			answers++
			total.Bytes += states[i].Bytes
			total.full = total.full || states[i].Bytes > int64(cfg.Bytes)/int64(len(all))
		}
	}
	s.mu.Lock()
	s.problems = problems
	s.mu.Unlock()
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
		return errors.New("no Sonic has opened it yet: the Sonic that owns the topic opens it")
	case !state.Ready:
		slices.Sort(state.Lacks)
		return fmt.Errorf("it may have older data than before: it waits for effects of the zones %s", strings.Join(state.Lacks, ", "))
	default:
		return nil
	}
}

// notReady returns why primaries take no writes, by address. Those that do are not in it.
func (s *primaryStates) notReady() map[string]error {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string]error{}
	for address, err := range s.problems {
		if err != nil {
			found[address] = err
		}
	}
	return found
}

// checkAny returns nil if a primary takes writes, otherwise why none does.
func (s *primaryStates) checkAny() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.problems) == 0 {
		return errors.New("it is not known yet whether the primaries take writes")
	}
	for _, err := range s.problems {
		if err == nil {
			return nil
		}
	}
	return writeProblems(s.problems)
}

// writeProblems returns one error for primaries that take no writes.
func writeProblems(problems map[string]error) error {
	var errs []error
	for _, address := range slices.Sorted(maps.Keys(problems)) {
		errs = append(errs, fmt.Errorf("primary %s takes no writes: %w", address, problems[address]))
	}
	return errors.Join(errs...)
}
