package nightingale

import (
	"strings"
	"sync"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// families remembers the metadata of metric families: in remote write 1.0, metadata comes in
// separate requests. The latest metadata of a tenant applies to that tenant's series.
type families struct {
	limit int // of entries, over all tenants

	mu    sync.RWMutex
	known map[familyKey]*batch.Metadata // entries never change: learn replaces them
}

// familyKey identifies a family of one tenant: one tenant's metadata must not appear in another
// tenant's messages.
type familyKey struct{ tenant, family string }

func newFamilies(limit int) *families {
	return &families{limit: limit, known: make(map[familyKey]*batch.Metadata)}
}

// learn remembers a tenant's entries. It returns how many it has ignored.
func (f *families) learn(tenant string, entries []batch.Metadata) (ignored int) {
	if len(entries) == 0 {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range entries {
		old, known := f.known[familyKey{tenant, m.Family}]
		switch {
		case known && old.Kind == m.Kind && old.Unit == m.Unit && old.Help == truncate.Text(m.Help, batch.MaxFamilyHelp):
		case m.Family == "" || len(m.Family) > batch.MaxFamilyName || len(m.Unit) > batch.MaxFamilyUnit || !known && len(f.known) >= f.limit:
			ignored++
		default:
			// Copies, because the entry's strings alias the request's body.
			fresh := &batch.Metadata{
				Family: strings.Clone(m.Family), Kind: m.Kind,
				Unit: strings.Clone(truncate.Text(m.Unit, batch.MaxFamilyUnit)), Help: strings.Clone(truncate.Text(m.Help, batch.MaxFamilyHelp)),
			}
			f.known[familyKey{strings.Clone(tenant), fresh.Family}] = fresh
		}
	}
	return ignored
}

// describe sets the metadata of each series in a tenant's batch.
func (f *families) describe(tenant string, b *batch.Batch) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if len(f.known) == 0 {
		return
	}
	var name string // of the previous series: series of a family follow each other
	var metadata *batch.Metadata
	for i := range b.Series {
		s := &b.Series[i]
		if s.Metadata != nil {
			continue // the request contains the series' metadata
		}
		if n := b.Name(s); n != name {
			name, metadata = n, f.find(tenant, n)
		}
		s.Metadata = metadata
	}
}

// find returns the metadata of a series' family, or nil. The family has the series' name, or for
// some types that name without a suffix. The caller holds f.mu.
func (f *families) find(tenant, name string) *batch.Metadata {
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
		fits = m.Kind == "histogram" || m.Kind == "gaugehistogram"
	case "_sum", "_count":
		fits = m.Kind == "histogram" || m.Kind == "summary"
	case "_gsum", "_gcount":
		fits = m.Kind == "gaugehistogram"
	case "_total":
		fits = m.Kind == "counter"
	case "_created":
		fits = m.Kind == "counter" || m.Kind == "histogram" || m.Kind == "summary"
	case "_info":
		fits = m.Kind == "info"
	}
	if !fits {
		return nil
	}
	return m
}
