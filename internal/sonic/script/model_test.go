package script_test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/stack"
)

// A versioned effect, as one zone appended it.
type versioned struct {
	position int64
	origin   string
	effect   []string
}

func (v versioned) key() string { return v.effect[2] + ":" + v.effect[3] }

func (v versioned) String() string {
	return fmt.Sprintf("%s@%s %q", wire.AtPosition(v.position), v.origin, v.effect)
}

func (v versioned) compare(o versioned) int {
	return cmp.Or(cmp.Compare(v.position, o.position), strings.Compare(v.origin, o.origin))
}

// history returns the effects of all topics in the order of their versions.
func (w *fixture) history() []versioned {
	w.t.Helper()
	var all []versioned
	for _, z := range w.zones {
		for i := range z.topic {
			all = append(all, z.effects(i)...)
		}
	}
	slices.SortStableFunc(all, versioned.compare)
	return all
}

// byKey returns the history of each key. A flush is a deletion of all keys of its databases.
func (w *fixture) byKey() map[string][]versioned {
	w.t.Helper()
	all, byKey := w.history(), make(map[string][]versioned)
	for _, v := range all {
		if v.effect[0] != "F" {
			byKey[v.key()] = nil
		}
	}
	for _, v := range all {
		if v.effect[0] != "F" {
			byKey[v.key()] = append(byKey[v.key()], v)
			continue
		}
		for _, flushed := range append([]string{v.effect[2]}, v.effect[4:]...) {
			for key := range byKey {
				if db, name, _ := strings.Cut(key, ":"); db == flushed {
					byKey[key] = append(byKey[key], versioned{v.position, v.origin, []string{"D", "l", db, name}})
				}
			}
		}
	}
	return byKey
}

// effects returns those of a message of the zone's topic.
func (z *zone) effects(index int) []versioned {
	t, m := z.fixture.t, &z.topic[index]
	t.Helper()
	if m.versioned != nil {
		return m.versioned
	}
	m.versioned = []versioned{}
	for _, e := range m.entries {
		effects, err := wire.Effects(e.Effects)
		require.NoError(t, err)
		for _, effect := range effects {
			m.versioned = append(m.versioned, versioned{position(t, e.ID.String()), z.name, effect.Values})
		}
	}
	return m.versioned
}

// A made content is that of one wholesale write of a list or stream.
type made struct{ kind, content, dump string }

// makers find out what wholesale writes of lists and streams make, one by one in a Redis of their
// own: R is what its dump holds, and L is its command, executed on what its base made, whatever
// came in between.
type makers struct {
	t      testing.TB
	client *redis.Client
	known  map[string]made // "<id>@<zone> <db>:<key>" to what it made
}

func newMakers(t testing.TB) *makers {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: stack.PrivateRedis(t).Addr(), MaxRetries: -1, PoolSize: 1})
	t.Cleanup(func() { _ = client.Close() })
	return &makers{t: t, client: client, known: make(map[string]made)}
}

func (m *makers) of(v versioned) made {
	m.t.Helper()
	ctx, e := m.t.Context(), v.effect
	name := wire.AtPosition(v.position).String() + "@" + v.origin + " " + v.key()
	if known, ok := m.known[name]; ok {
		return known
	}
	const key = "made"
	dump := e[4]
	if e[0] == "L" {
		from := v.key()
		if e[7] == "COPY" {
			from = e[9] + ":" + e[8]
		}
		base, ok := m.known[e[4]+" "+from]
		require.True(m.t, ok, "%v names what nobody made", v)
		dump = base.dump
	}
	pipe := m.client.Pipeline()
	pipe.RestoreReplace(ctx, key, 0, dump)
	if e[0] == "L" && e[7] != "COPY" {
		args := []any{e[7], key}
		if e[7] == "LMOVE" {
			args = append(args, key)
		}
		for _, arg := range e[8:] {
			args = append(args, arg)
		}
		pipe.Do(ctx, args...)
	}
	kind, dumped := pipe.Type(ctx, key), pipe.Dump(ctx, key)
	_, err := pipe.Exec(ctx)
	require.NoError(m.t, err, "%v", v)
	one := made{kind: kind.Val(), dump: dumped.Val()}
	content := contentOf(ctx, pipe, one.kind, key)
	_, _ = pipe.Exec(ctx) // each command has its own error
	one.content = content(m.t)
	m.known[name] = one
	return one
}

// A folded key is what the model holds of a key while it folds.
type folded struct {
	kind     string
	made     string // the kind of what R or L made
	text     string
	whole    versioned
	elements map[string]element
	said     versioned // about the expiry
	pxat     int64     // -1 never
	wiped    int64
}

type element struct {
	value string
	at    versioned
}

func kindOf(op string) string {
	return map[string]string{"H": "hash", "A": "set", "Z": "zset"}[op]
}

func pxat(t testing.TB, text string) int64 {
	t.Helper()
	if text == "" {
		return -1
	}
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
}

func same(a, b versioned) bool { return a.position == b.position && a.origin == b.origin }

// fold applies the effects of a key one by one, in the order of their versions: what the zones must
// hold. It knows nothing of arrival.
//
// What an expiry has wiped before a newer statement about the expiry is gone when the writer of
// that statement had seen it pass. It says so in W, unless it has forgotten that there was an
// expiry: then all zones have. seen says that it had.
func (m *makers) fold(effects []versioned, now int64, seen bool) (value, bool) {
	t := m.t
	t.Helper()
	k := folded{pxat: -1, elements: make(map[string]element)}
	sum := int64(0)
	counter := false
	for _, v := range effects {
		e := v.effect
		switch e[0] {
		case "S":
			k.kind, k.text, k.whole, k.elements = "string", e[4], v, make(map[string]element)
			k.said, k.pxat = v, pxat(t, e[5])
		case "R", "L":
			one := m.of(v)
			k.kind, k.made, k.text, k.whole, k.elements = "made", one.kind, one.content, v, make(map[string]element)
			k.said, k.pxat = v, pxat(t, e[5])
		case "D":
			k.kind, k.whole, k.elements = "", v, make(map[string]element)
			k.said, k.pxat = v, -1
		case "H", "A", "Z":
			if k.kind != kindOf(e[0]) {
				k.kind, k.elements = kindOf(e[0]), make(map[string]element)
			}
			carried := pxat(t, e[4])
			if same(k.whole, v) && carried >= 0 {
				k.said, k.pxat = v, carried
			}
			step := 2
			if e[0] == "A" {
				step = 1
			}
			for i := 5; i+step <= len(e); i += step {
				name, val := e[i], ""
				switch e[0] {
				case "H":
					val = e[i+1]
				case "Z":
					name, val = e[i+1], e[i]
				}
				if carried >= 0 && carried <= v.position>>20 {
					delete(k.elements, name) // about to expire when it was written
					continue
				}
				k.elements[name] = element{val, v}
			}
		case "h", "a", "z":
			for _, name := range e[5:] {
				delete(k.elements, name)
			}
		case "E":
			if seen && k.pxat >= 0 && k.pxat <= v.position>>20 {
				k.wiped = max(k.wiped, k.pxat)
				k.expire()
			}
			k.said, k.pxat = v, pxat(t, e[4])
			if len(e) > 5 && e[5] != "" {
				k.wiped = max(k.wiped, pxat(t, e[5]))
			}
		case "I":
			n, err := strconv.ParseInt(e[4], 10, 64)
			require.NoError(t, err)
			counter = true
			sum += n
		}
	}
	if counter {
		return value{"string", strconv.FormatInt(sum, 10), -1}, true
	}
	return k.value(now)
}

// expire removes what is not newer than the statement about the expiry, which has passed: a clock
// that is ahead makes statements of times before their own.
func (k *folded) expire() {
	if k.kind == "string" || k.kind == "made" {
		k.kind = ""
	}
	for name, e := range k.elements {
		if !after(e.at, k.said) {
			delete(k.elements, name)
		}
	}
}

func after(a, b versioned) bool {
	return a.position > b.position || a.position == b.position && a.origin > b.origin
}

func (k folded) value(now int64) (value, bool) {
	expired := k.pxat >= 0 && k.pxat <= now
	dead := func(v versioned) bool {
		if v.position>>20 < k.wiped {
			return true
		}
		return expired && (v.position>>20 < k.pxat || !after(v, k.said))
	}
	result := value{kind: k.kind, expires: k.pxat}
	if expired {
		result.expires = -1
	}
	switch k.kind {
	case "":
		return value{}, false
	case "made":
		result.kind, result.content = k.made, k.text
		return result, !dead(k.whole)
	case "string":
		result.content = k.text
		return result, !dead(k.whole)
	}
	var list []string
	for name, e := range k.elements {
		if dead(e.at) {
			continue
		}
		switch k.kind {
		case "hash":
			list = append(list, name+"="+e.value)
		case "set":
			list = append(list, name)
		case "zset":
			list = append(list, name+"="+e.value)
		}
	}
	slices.Sort(list)
	result.content = strings.Join(list, " ")
	return result, len(list) > 0
}
