package nightingale

import (
	"strings"
	"sync"

	"github.com/aviaryhq/aviary/internal/door"
)

// Bounds of what is remembered of one family.
const (
	maxFamilyName = 256
	maxFamilyUnit = 64
	maxFamilyHelp = 1024
)

// families remembers what senders tell about metric families: in remote write 1.0
// metadata travels in requests of its own. The latest word of a tenant counts, for
// that tenant's series.
type families struct {
	limit int // of all tenants'

	mu    sync.RWMutex
	known map[familyKey]*metadata // entries are replaced, never changed
}

// familyKey names a family: what one tenant says must not appear in another's
// messages.
type familyKey struct{ tenant, family string }

func newFamilies(limit int) *families {
	return &families{limit: limit, known: make(map[familyKey]*metadata)}
}

// learn remembers a tenant's entries and returns how many it did not.
func (f *families) learn(tenant string, entries []metadata) (ignored int) {
	if len(entries) == 0 {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range entries {
		old, known := f.known[familyKey{tenant, m.family}]
		switch {
		case known && old.kind == m.kind && old.unit == m.unit && old.help == door.Cut(m.help, maxFamilyHelp):
		case m.family == "" || len(m.family) > maxFamilyName || len(m.unit) > maxFamilyUnit || !known && len(f.known) >= f.limit:
			ignored++
		default:
			// Copies: the entry's strings are the request's.
			fresh := &metadata{
				family: strings.Clone(m.family), kind: m.kind,
				unit: strings.Clone(door.Cut(m.unit, maxFamilyUnit)), help: strings.Clone(door.Cut(m.help, maxFamilyHelp)),
			}
			f.known[familyKey{strings.Clone(tenant), fresh.family}] = fresh
		}
	}
	return ignored
}

// describe tells each series of a tenant's batch what its family is.
func (f *families) describe(tenant string, b *batch) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if len(f.known) == 0 {
		return
	}
	var name string // of the series before: a family's series come together
	var about *metadata
	for i := range b.series {
		s := &b.series[i]
		if s.about != nil {
			continue // it came with the series
		}
		if n := b.name(s); n != name {
			name, about = n, f.find(tenant, n)
		}
		s.about = about
	}
}

func (b *batch) name(s *series) string {
	if s.labels.len() == 0 {
		refs := of(b.refs, s.refs)
		for i := 0; i < len(refs); i += 2 {
			if b.symbols[refs[i]] == nameLabel {
				return b.symbols[refs[i+1]]
			}
		}
	}
	for _, l := range of(b.labels, s.labels) {
		if l.name == nameLabel {
			return l.value
		}
	}
	return ""
}

// find looks for a series' family: its own name, or that without the suffix that
// the series of some types have. f.mu is held.
func (f *families) find(tenant, name string) *metadata {
	if m := f.known[familyKey{tenant, name}]; m != nil {
		return m
	}
	at := strings.LastIndexByte(name, '_')
	if at <= 0 {
		return nil
	}
	m := f.known[familyKey{tenant, name[:at]}]
	if m == nil {
		return nil
	}
	fits := false
	switch name[at:] {
	case "_bucket":
		fits = m.kind == "histogram" || m.kind == "gaugehistogram"
	case "_sum", "_count":
		fits = m.kind == "histogram" || m.kind == "summary"
	case "_gsum", "_gcount":
		fits = m.kind == "gaugehistogram"
	case "_total":
		fits = m.kind == "counter"
	case "_created":
		fits = m.kind == "counter" || m.kind == "histogram" || m.kind == "summary"
	case "_info":
		fits = m.kind == "info"
	}
	if !fits {
		return nil
	}
	return m
}
