package registry

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// board is what instances have told. What is older than its time is gone. It is not safe for concurrent use.
type board struct {
	heard map[string]*heard
}

// heard is what one instance has told.
type heard struct {
	instance Instance
	alive    time.Time // when it was last heard of; zero before its first heartbeat
	states   map[string]heardState
}

type heardState struct {
	state json.RawMessage
	at    time.Time
}

func newBoard() board { return board{heard: make(map[string]*heard)} }

// confirmWithin is for how long an instance counts that was only heard of in what was told before this process began to read: it may have died meanwhile,
// and tells again each heartbeatEvery if not.
const confirmWithin = heartbeatEvery + 2*time.Second

// take takes a message over. Times are of this process' clock: others' may be wrong. before says that the message was told before this process began to read.
func (b *board) take(now time.Time, d *messaging.Delivery, before bool) {
	var m statusMessage
	if d.Key == "" || json.Unmarshal(d.Payload, &m) != nil || m.Format < 1 {
		return // of a newer version, or nobody's
	}
	name, key, isState := strings.Cut(d.Key, "/")
	h := b.heard[name]
	if h == nil {
		b.expire(now)
		if len(b.heard) >= maxInstances || m.Gone {
			return
		}
		h = &heard{alive: now, states: make(map[string]heardState)}
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
			h.states[key] = heardState{state: m.State, at: now}
		}
	case m.Instance != nil:
		if !m.Instance.Started.Equal(h.instance.Started) && !h.instance.Started.IsZero() { // another process of that name
			clear(h.states)
		}
		h.instance, h.alive = *m.Instance, now
		if before {
			h.alive = now.Add(confirmWithin - expireAfter)
		}
		h.instance.Name = name
	}
}

// expire forgets the instances that were not heard of for long.
func (b *board) expire(now time.Time) {
	maps.DeleteFunc(b.heard, func(_ string, h *heard) bool { return now.Sub(h.alive) > expireAfter })
}

func (b *board) instances(now time.Time) []Instance {
	b.expire(now)
	all := make([]Instance, 0, len(b.heard))
	for _, name := range slices.Sorted(maps.Keys(b.heard)) {
		h := b.heard[name]
		if h.instance.Started.IsZero() { // only states came so far
			continue
		}
		i := h.instance
		i.Seen = h.alive
		all = append(all, i)
	}
	return all
}

// stateAge is for how long a state counts that is not told again.
const stateAge = 2*refreshEvery + expireAfter

func (b *board) states(now time.Time, key string) map[string]json.RawMessage {
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
