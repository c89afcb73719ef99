package pigeonhole

import (
	"github.com/aviaryhq/aviary/internal/connector/lane"
	"github.com/aviaryhq/aviary/internal/connector/message"
)

// Loops are cut by places: a message carries where each route took it from, and is
// dropped when it would go to one of them. So topics can be replicated both ways, and
// any number of routes can stand in a row.

// steps tells, for one lane, where its messages come from and whether they have been
// where they go. The names of both are kept: they seldom change.
type steps struct {
	placeName func(to string) string // of the sink
	limit     int

	topic, hop string // the last message's topic, and its name
	to, place  string // the last destination, and its name
}

// check returns an error for a message that has made too many steps.
func (s *steps) check(m *message.Message) error {
	if err := m.CheckHops(s.limit); err != nil {
		return lane.Refuse("hops", err)
	}
	return nil
}

// circles reports whether m has been at the destination to.
func (s *steps) circles(m *message.Message, to string) bool {
	if len(m.Hops) == 0 {
		return false
	}
	if s.place == "" || s.to != to {
		s.to, s.place = to, s.placeName(to)
	}
	return m.HasBeen(s.place)
}

// leave notes where m is taken from.
func (s *steps) leave(m *message.Message) {
	if s.hop == "" || s.topic != m.From.Topic {
		s.topic, s.hop = m.From.Topic, message.PlaceName(m.From.System, m.From.Cluster, m.From.Topic)
	}
	m.Hop = s.hop
}
