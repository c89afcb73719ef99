package history

import (
	"cmp"
	"fmt"
	"slices"
)

// Kind is what a violation breaks.
type Kind string

// The kinds of violations.
const (
	// Loss: a message was never handled with success, or was stored and is not there.
	Loss Kind = "loss"
	// Overtaken: a message was handled before an earlier one of its group.
	Overtaken Kind = "overtaken"
	// Gap: after a repetition, or between two records of a stream, those in between did not follow.
	Gap Kind = "gap"
	// StaleEnd: the last message handled of a group is not its newest.
	StaleEnd Kind = "stale end"
	// Overlap: two messages that are to be handled one after the other were handled at once.
	Overlap Kind = "overlap"
	// Pinned: messages stay in the backlog while a consumer runs.
	Pinned Kind = "pinned"
	// Unknown: something came that nobody sent.
	Unknown Kind = "unknown"
	// Bounds: more was unfinished at once than is configured.
	Bounds Kind = "bounds"
	// Forgotten: a message that failed came again without its attempts.
	Forgotten Kind = "forgotten"
	// Blocked: a message waited for one that it is not ordered behind.
	Blocked Kind = "blocked"
	// Owner: a publisher that lost its topic wrote to it again.
	Owner Kind = "owner"
	// Outcome: what a publisher reported of a record is not true.
	Outcome Kind = "outcome"
)

// Violation is one promise broken.
type Violation struct {
	Kind Kind
	Text string
}

func (v Violation) String() string { return string(v.Kind) + ": " + v.Text }

// Message is a message that was there to consume.
type Message struct {
	ID string
	// Group is what the message is ordered in, empty if it is ordered against nothing.
	Group string
}

// Result is how handling a message ended.
type Result int

// The results.
const (
	Unfinished Result = iota // it did not end, or its end had no effect
	Done
	Failed // to be tried again
	Dead   // copied to the dead-letter topic
)

// Delivery is one call of a handler.
type Delivery struct {
	ID string
	// Start and End are moments of the history, from 1: of two events the later one has the larger
	// number. End is 0 while there is none.
	Start, End int
	Result     Result
	// Attempt is what the handler was told, from 1.
	Attempt int
	// Lapsed: the message was no longer the consumer's when it ended, another consumer has been
	// sent it. What it did counts neither way.
	Lapsed bool
}

// Consumed is what the consumers of one subscription did.
type Consumed struct {
	// Log is all there was to consume, in the order of the log within each group.
	Log        []Message
	Deliveries []Delivery
	// Backlog is what the subscription has not acknowledged at the end.
	Backlog int
	// DeadLetters holds the ids of the messages on the dead-letter topic.
	DeadLetters map[string]bool
	// Ordered: the messages of a group are handled in their order. None is begun before all in
	// front of it were handled, and not while another of its group is; and what is handled again is
	// followed by all behind it.
	Ordered bool
	// Loose holds the groups in which what is handled again need not be followed by what is behind
	// it: another consumer had them, and what was handled first may have been acknowledged without
	// what was handled before it.
	Loose map[string]bool
	// Attempts: a message that failed comes again with the next attempt.
	Attempts bool
	// OneAtATime: deliveries of different groups do not overlap either.
	OneAtATime bool
}

// Check lists the promises that were broken.
func (c Consumed) Check() []Violation {
	var out []Violation
	if c.Backlog > 0 {
		out = append(out, Violation{Pinned, fmt.Sprintf("%d messages are not acknowledged", c.Backlog)})
	}
	place := make(map[string]Place, len(c.Log))
	sizes := make(map[string]int)
	for _, m := range c.Log {
		place[m.ID] = Place{m.Group, sizes[m.Group]}
		sizes[m.Group]++
	}
	out = append(out, c.lost(place)...)
	if c.Attempts {
		out = append(out, c.forgotten(place)...)
	}
	if c.Ordered {
		out = append(out, c.overtaken(place)...)
		out = append(out, c.followed(place, sizes)...)
		out = append(out, c.overlaps(place)...)
	}
	return out
}

// Place is where a message stands in its group.
type Place struct {
	Group string
	N     int
}

func (p Place) String() string { return fmt.Sprintf("%s#%d", p.Group, p.N) }

func (c Consumed) lost(place map[string]Place) (out []Violation) {
	done := make(map[string]bool)
	for _, d := range c.Deliveries {
		if _, ok := place[d.ID]; !ok {
			out = append(out, Violation{Unknown, "handled " + d.ID})
		}
		if d.Result == Done || d.Result == Dead && c.DeadLetters[d.ID] {
			done[d.ID] = true
		}
	}
	for _, m := range c.Log {
		if !done[m.ID] {
			out = append(out, Violation{Loss, fmt.Sprintf("%s (%s) was never handled with success", place[m.ID], m.ID)})
		}
	}
	return out
}

func (c Consumed) forgotten(place map[string]Place) (out []Violation) {
	calls := slices.Clone(c.Deliveries)
	slices.SortFunc(calls, func(a, b Delivery) int { return cmp.Compare(a.Start, b.Start) })
	last := make(map[string]Delivery)
	for _, d := range calls {
		before, ok := last[d.ID]
		if ok && before.Result == Failed && before.End < d.Start && d.Attempt != before.Attempt+1 {
			out = append(out, Violation{Forgotten, fmt.Sprintf("%s came with attempt %d behind attempt %d", place[d.ID], d.Attempt, before.Attempt)})
		}
		last[d.ID] = d
	}
	return out
}

// overtaken looks at the first time that each message was handled.
func (c Consumed) overtaken(place map[string]Place) (out []Violation) {
	first := make(map[Place]int) // when it was first handled with success
	for _, d := range c.Deliveries {
		p := place[d.ID]
		if d.Result != Done && d.Result != Dead {
			continue
		}
		if at, ok := first[p]; !ok || d.End < at {
			first[p] = d.End
		}
	}
	for _, d := range c.Deliveries {
		p, known := place[d.ID]
		if !known || p.Group == "" {
			continue
		}
		for n := range p.N {
			before := Place{p.Group, n}
			if at, ok := first[before]; !ok || at > d.Start {
				out = append(out, Violation{Overtaken, fmt.Sprintf("%s began before %s was handled", p, before)})
				break
			}
		}
	}
	return out
}

// followed goes through what was done to each group, in the order in which it was done.
func (c Consumed) followed(place map[string]Place, sizes map[string]int) (out []Violation) {
	effects := slices.Clone(c.Deliveries)
	slices.SortFunc(effects, func(a, b Delivery) int { return cmp.Compare(a.End, b.End) })
	groups := make(map[string]*Sequence)
	for _, d := range effects {
		p, known := place[d.ID]
		if !known || p.Group == "" || c.Loose[p.Group] || d.End == 0 || d.Result == Unfinished {
			continue
		}
		s := groups[p.Group]
		if s == nil {
			s = new(Sequence)
			groups[p.Group] = s
		}
		if d.Lapsed {
			// It may have been acknowledged all the same, and then it comes to nobody again.
			s.Excuse(p.N)
			continue
		}
		see := s.See
		if d.Result == Failed {
			see = s.Fail
		}
		if err := see(p.N); err != nil {
			out = append(out, Violation{Gap, fmt.Sprintf("group %s: %v", p.Group, err)})
		}
	}
	for group, n := range sizes {
		s := groups[group]
		if group == "" || s == nil {
			continue // what is missing altogether is lost
		}
		if err := s.End(n); err != nil {
			out = append(out, Violation{StaleEnd, fmt.Sprintf("group %s: %v", group, err)})
		}
	}
	return out
}

func (c Consumed) overlaps(place map[string]Place) (out []Violation) {
	calls := slices.Clone(c.Deliveries)
	slices.SortFunc(calls, func(a, b Delivery) int { return cmp.Compare(a.Start, b.Start) })
	last := make(map[string]Delivery)
	for _, d := range calls {
		group := place[d.ID].Group
		if group == "" || d.Lapsed {
			continue
		}
		if c.OneAtATime {
			group = "all"
		}
		if before, ok := last[group]; ok && (before.End == 0 || before.End > d.Start) {
			out = append(out, Violation{Overlap, fmt.Sprintf("%s began while %s was being handled", place[d.ID], place[before.ID])})
		}
		last[group] = d
	}
	return out
}
