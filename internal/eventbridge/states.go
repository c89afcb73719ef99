package eventbridge

import (
	"context"
	"encoding/json"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/delivery"
	"github.com/aviaryhq/aviary/internal/eventbridge/engine"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// statesEvery is how often the states of the processor's deliveries are checked.
const statesEvery = time.Second

// publishedState is what other instances see of this process' deliveries to a subscriber. It leaves
// out what changes with each event, because that would be published all the time.
type publishedState struct {
	Delivering bool                  `json:"delivering"`
	Breaker    delivery.BreakerState `json:"breaker,omitempty"`
	ProbeAt    time.Time             `json:"probe_at,omitzero"`
	StandsBy   bool                  `json:"stands_by,omitempty"`
	Unhealthy  string                `json:"unhealthy,omitempty"`
}

// maxUnhealthy limits Unhealthy, in bytes: all instances keep the states of all subscribers.
const maxUnhealthy = 300

// publishStates publishes the states of this process' deliveries to other instances.
func (s *service) publishStates(ctx context.Context) error {
	tick := time.NewTicker(statesEvery)
	defer tick.Stop()
	known := make(map[[2]string]bool)
	for {
		now := make(map[[2]string]bool, len(known))
		snapshot := s.store.Snapshot()
		for b := range snapshot.Buses() {
			for sub := range snapshot.Subscribers(b.Name) {
				now[[2]string{sub.Bus, sub.Name}] = true
				s.publishState(sub)
			}
		}
		for at := range known {
			if !now[at] {
				s.status.SetState(at[0], at[1], nil)
			}
		}
		known = now
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *service) publishState(sub *model.Subscriber) {
	text, err := stateOf(s.processor.Status(sub.Bus, sub.Name))
	if err != nil {
		s.rt.Log.Debug("cannot publish the state of a subscriber", zap.String("bus", sub.Bus), zap.String("subscriber", sub.Name), zap.Error(err))
		return
	}
	s.status.SetState(sub.Bus, sub.Name, text)
}

// stateOf encodes a state for other instances.
func stateOf(now delivery.Status) ([]byte, error) {
	return json.Marshal(publishedState{
		Delivering: now.Delivering, Breaker: now.Breaker, ProbeAt: now.ProbeAt.UTC().Truncate(time.Second), StandsBy: now.StandsBy, Unhealthy: truncate.Text(now.Unhealthy, maxUnhealthy),
	})
}

// publishInterval is how often the engine's status is published.
const publishInterval = 100 * time.Millisecond

// publishEngineStatus publishes by which revision of the registry the engine matches, and which
// partitions it owns.
func (s *service) publishEngineStatus(ctx context.Context, e *engine.Engine) error {
	tick := time.NewTicker(publishInterval)
	defer tick.Stop()
	var published map[string][]int
	for {
		s.status.SetRevision(e.Applied())
		now := e.Partitions()
		for bus := range published {
			s.status.SetPartitions(bus, now[bus]) // none, if the bus was deleted
		}
		for bus, partitions := range now {
			s.status.SetPartitions(bus, partitions)
		}
		published = now
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
