package eventbridge

import (
	"context"
	"encoding/json"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/door"
	"github.com/aviaryhq/aviary/internal/eventbridge/processor"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
)

// statesEvery is how often it is looked at what the processor does for each subscriber.
const statesEvery = time.Second

// told is what others hear of this process' deliveries to a subscriber. What changes with each event is left out: it would be told all the time.
type told struct {
	Delivering bool                   `json:"delivering"`
	Breaker    processor.BreakerState `json:"breaker,omitempty"`
	ProbeAt    time.Time              `json:"probe_at,omitzero"`
	StandsBy   bool                   `json:"stands_by,omitempty"`
	Trouble    string                 `json:"trouble,omitempty"`
}

// maxTrouble bounds what is told of a trouble, in bytes. As JSON each may be six: MaxStateBytes holds no more than that.
const maxTrouble = 300

// tellStates tells other instances how this process' deliveries to each subscriber are.
func (s *service) tellStates(ctx context.Context) error {
	tick := time.NewTicker(statesEvery)
	defer tick.Stop()
	known := make(map[[2]string]bool)
	for {
		now := make(map[[2]string]bool, len(known))
		snapshot := s.store.Snapshot()
		for b := range snapshot.Buses() {
			for sub := range snapshot.Subscribers(b.Name) {
				now[[2]string{sub.Bus, sub.Name}] = true
				s.tellState(sub)
			}
		}
		for at := range known {
			if !now[at] {
				_ = s.status.SetState(at[0], at[1], nil) // taking back never fails
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

func (s *service) tellState(sub *registry.Subscriber) {
	text, err := stateOf(s.processor.Status(sub.Bus, sub.Name))
	if err == nil {
		err = s.status.SetState(sub.Bus, sub.Name, text)
	}
	if err != nil {
		s.rt.Log.Debug("cannot tell others the state of a subscriber", zap.String("bus", sub.Bus), zap.String("subscriber", sub.Name), zap.Error(err))
	}
}

// stateOf is what is told of a state.
func stateOf(now processor.Status) ([]byte, error) {
	return json.Marshal(told{
		Delivering: now.Delivering, Breaker: now.Breaker, ProbeAt: now.ProbeAt.UTC().Truncate(time.Second), StandsBy: now.StandsBy, Trouble: door.Cut(now.Trouble, maxTrouble),
	})
}
