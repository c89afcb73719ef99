package instances

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// knownInstances holds what instances have published, until it expires. It is not safe for
// concurrent use.
type knownInstances struct {
	heard map[string]*heard
}

// heard is what one instance has published.
type heard struct {
	instance Instance
	alive    time.Time // when its last heartbeat came; before that, when its first message came
	states   map[string]timedState
}

type timedState struct {
	state json.RawMessage
	at    time.Time
}

func newKnownInstances() knownInstances { return knownInstances{heard: make(map[string]*heard)} }

// confirmWithin is how long an instance counts whose messages were all published before this
// process began to read. It may have died meanwhile; if not, it publishes again each
// heartbeatEvery.
const confirmWithin = heartbeatEvery + 2*time.Second

// take applies a message. Times are by this process' clock: other clocks may be wrong. before says
// that the message was published before this process began to read.
func (b *knownInstances) take(now time.Time, d *messaging.Delivery, before bool) {
	var m statusMessage
	if d.Key == "" || json.Unmarshal(d.Payload, &m) != nil || m.Format < 1 {
		return // not a status message of this format
	}
	name, key, isState := strings.Cut(d.Key, "/")
	h := b.heard[name]
	if h == nil {
		b.expire(now)
		if len(b.heard) >= maxInstances || m.Gone {
			return
		}
		h = &heard{alive: now, states: make(map[string]timedState)}
		h.instance.Name = name
		b.heard[name] = h
	}
	switch {
	case m.Gone:
		delete(b.heard, name)
	case isState && len(m.State) == 0:
		delete(h.states, key)
	case isState:
		if _, known := h.states[key]; known || len(h.states) < maxStates {
			h.states[key] = timedState{state: m.State, at: now}
		}
	case m.Instance != nil:
		if !m.Instance.Started.Equal(h.instance.Started) && !h.instance.Started.IsZero() { // another process with that name
			clear(h.states)
		}
		h.instance, h.alive = *m.Instance, now
		if before {
			h.alive = now.Add(confirmWithin - expireAfter)
		}
		h.instance.Name = name
	}
}

// expire removes the instances that have published nothing for expireAfter.
func (b *knownInstances) expire(now time.Time) {
	maps.DeleteFunc(b.heard, func(_ string, h *heard) bool { return now.Sub(h.alive) > expireAfter })
}

func (b *knownInstances) instances(now time.Time) []Instance {
	b.expire(now)
	all := make([]Instance, 0, len(b.heard))
	for _, name := range slices.Sorted(maps.Keys(b.heard)) {
		h := b.heard[name]
		if h.instance.Started.IsZero() { // only states have come so far
			continue
		}
		i := h.instance
		i.Seen = h.alive
		all = append(all, i)
	}
	return all
}

// stateAge is how long a state counts that is not published again.
const stateAge = 2*refreshEvery + expireAfter

func (b *knownInstances) states(now time.Time, key string) map[string]json.RawMessage {
	b.expire(now)
	all := make(map[string]json.RawMessage)
	for name, h := range b.heard {
		switch s, ok := h.states[key]; {
		case !ok:
		case now.Sub(s.at) > stateAge:
			delete(h.states, key)
		default:
			all[name] = s.state
		}
	}
	return all
}
