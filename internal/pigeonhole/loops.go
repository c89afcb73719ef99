package pigeonhole

import (
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// How loops are prevented: a message carries the topics and queues from which routes have taken it,
// its hops. A route drops a message whose destination is one of them. So topics can be replicated
// both ways, and any number of routes can follow each other.

// hopCheck finds loops among the messages of one pipeline and sets their hops. It caches the last
// names: they seldom change.
type hopCheck struct {
	placeName func(to string) string // of the sink
	maxHops   int

	lastTopic, lastHop string // the last message's topic, and its name among the hops
	lastTo, lastPlace  string // the last destination, and its name among the hops
}

// checkCount returns an error for a message that has passed too many routes.
func (h *hopCheck) checkCount(m *message.Message) error {
	if err := m.CheckHops(h.maxHops); err != nil {
		return pipeline.Refuse("hops", err)
	}
	return nil
}

// loops reports whether m has been at the destination to.
func (h *hopCheck) loops(m *message.Message, to string) bool {
	if len(m.Hops) == 0 {
		return false
	}
	if h.lastPlace == "" || h.lastTo != to {
		h.lastTo, h.lastPlace = to, h.placeName(to)
	}
	return m.HasPassed(h.lastPlace)
}

// setHop sets the hop of m: where the route has taken it from.
func (h *hopCheck) setHop(m *message.Message) {
	if h.lastHop == "" || h.lastTopic != m.From.Topic {
		h.lastTopic, h.lastHop = m.From.Topic, message.PlaceName(m.From.System, m.From.Cluster, m.From.Topic)
	}
	m.Hop = h.lastHop
}
