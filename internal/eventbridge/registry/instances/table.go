package instances

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// instanceTable holds what instances have published, by their names, until it expires. It is not
// safe for concurrent use.
type instanceTable map[string]*instanceState

// instanceState is what one instance has published. Seen is when its last heartbeat came; before
// the first one, when its first message came.
type instanceState struct {
	Instance
	states map[string]timedState // by BUS/NAME
}

type timedState struct {
	state json.RawMessage
	at    time.Time
}

// take applies a message. Times are by this process' clock: other clocks may be wrong.
func (t instanceTable) take(now time.Time, d *messaging.Delivery) {
	var m statusMessage
	if json.Unmarshal(d.Payload, &m) != nil || m.Format < 1 {
		return // not a status message of this format
	}
	name, key, isState := strings.Cut(d.Key, "/")
	if m.Gone {
		delete(t, name)
		return
	}
	i := t[name]
	if i == nil {
		t.expire(now)
		i = &instanceState{Instance: Instance{Seen: now}, states: make(map[string]timedState)}
		t[name] = i
	}
	switch {
	case isState && len(m.State) == 0:
		delete(i.states, key)
	case isState:
		i.states[key] = timedState{state: m.State, at: now}
	case m.Instance != nil:
		if !m.Instance.Started.Equal(i.Started) && !i.Started.IsZero() { // another process with that name
			clear(i.states)
		}
		i.Instance = *m.Instance
		i.Name, i.Seen = name, now
	}
}

// expire removes the instances that have published nothing for expireAfter.
func (t instanceTable) expire(now time.Time) {
	maps.DeleteFunc(t, func(_ string, i *instanceState) bool { return now.Sub(i.Seen) > expireAfter })
}

func (t instanceTable) instances(now time.Time) (all []Instance) {
	t.expire(now)
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if i := t[name]; !i.Started.IsZero() { // zero: only states have come so far
			all = append(all, i.Instance)
		}
	}
	return all
}

// stateAge is how long a state counts that is not published again.
const stateAge = 2*refreshEvery + expireAfter

func (t instanceTable) states(now time.Time, key string) map[string]json.RawMessage {
	t.expire(now)
	all := make(map[string]json.RawMessage)
	for name, i := range t {
		if s, ok := i.states[key]; ok && now.Sub(s.at) <= stateAge {
			all[name] = s.state
		}
	}
	return all
}
