package engine

import (
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/eventpattern"
)

// subscriber is one revision of a subscriber for which events are matched. It is immutable, except
// for its send queue.
type subscriber struct {
	*model.Subscriber
	ordered   bool
	sendQueue *sendQueue // if the subscriber is not ordered; the same for all revisions
}

// ruleID identifies a rule in the index. It holds the subscriber, so that the matching rules and
// their subscribers come from one state of the index.
type ruleID struct {
	subscriber *subscriber
	rule       int
}

// rules are the rules of all subscribers of a bus that are not disabled. Any goroutine may call
// match, only one may call change.
type rules struct {
	index *eventpattern.Index[ruleID]

	// Only the goroutine that calls change uses known.
	known map[string]*subscriber // by UID
}

func newRules() *rules {
	return &rules{index: eventpattern.NewIndex[ruleID](), known: make(map[string]*subscriber)}
}

// change makes the index hold the rules of wanted, and no others, in one step. sendQueueOf returns
// the send queue of a subscriber that is not ordered.
func (r *rules) change(wanted []*model.Subscriber, sendQueueOf func(*model.Subscriber) *sendQueue) {
	next := make(map[string]*subscriber, len(wanted))
	var changed, old []*subscriber
	for _, s := range wanted {
		was := r.known[s.UID]
		if was != nil && was.Revision == s.Revision {
			next[s.UID] = was
			continue
		}
		now := &subscriber{Subscriber: s, ordered: s.Order.Ordered()}
		if !now.ordered {
			now.sendQueue = sendQueueOf(s)
		}
		next[s.UID] = now
		changed = append(changed, now)
		if was != nil {
			old = append(old, was)
		}
	}
	for uid, was := range r.known {
		if next[uid] == nil {
			old = append(old, was)
		}
	}
	r.known = next
	if len(changed)+len(old) == 0 {
		return
	}
	r.index.Update(func(c *eventpattern.Change[ruleID]) {
		for _, s := range old {
			for i := range s.Rules {
				c.Remove(ruleID{s, i})
			}
		}
		for _, s := range changed {
			for i, rule := range s.Rules {
				c.Set(ruleID{s, i}, rule.Compiled())
			}
		}
	})
}

// matcher matches events for one goroutine at a time.
type matcher struct {
	scratch     eventpattern.Scratch
	ids         []ruleID
	subscribers []*subscriber // those with a rule that matches, each once, until the next match
}

// match finds the subscribers with a rule that matches an event.
func (m *matcher) match(r *rules, event []byte) (err error) {
	m.ids, err = r.index.Match(&m.scratch, m.ids[:0], event)
	m.subscribers = m.subscribers[:0]
	for _, id := range m.ids {
		m.subscribers = append(m.subscribers, id.subscriber)
	}
	if len(m.subscribers) > 1 {
		slices.SortFunc(m.subscribers, func(a, b *subscriber) int { return strings.Compare(a.UID, b.UID) })
		m.subscribers = slices.Compact(m.subscribers)
	}
	return err
}
