package nightingale

import (
	"strings"
	"sync"

	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// families remembers the metadata of metric families: in remote write 1.0, metadata comes in
// separate requests. The latest metadata of a tenant applies to that tenant's series only.
type families struct {
	limit int // of entries, over all tenants

	mu     sync.RWMutex
	shares *admission.Shares
	known  map[string]map[string]*batch.Metadata // by tenant and family; entries never change: learn replaces them
}

func newFamilies(limit int) *families {
	return &families{limit: limit, shares: admission.NewShares(limit), known: make(map[string]map[string]*batch.Metadata)}
}

// learn remembers a tenant's entries, and returns how many are remembered, ignored and evicted.
func (f *families) learn(tenant string, entries []batch.Metadata) (r batch.MetadataCounts) {
	if len(entries) == 0 {
		return r
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range entries {
		old, help := f.known[tenant][m.Family], truncate.Text(m.Help, batch.MaxFamilyHelp)
		switch {
		case old != nil && old.Type == m.Type && old.Unit == m.Unit && old.Help == help:
		case m.Family == "" || len(m.Family) > batch.MaxFamilyName || len(m.Unit) > batch.MaxFamilyUnit || f.limit == 0:
			r.Ignored++
			continue
		default:
			if old == nil {
				r.Evicted += f.evictIfFull(tenant)
			}
			// Copies, because the entry's strings alias the request's body.
			family := strings.Clone(m.Family)
			f.known[tenant][family] = &batch.Metadata{
				Family: family, Type: m.Type, Unit: strings.Clone(m.Unit), Help: strings.Clone(help),
			}
		}
		r.Remembered++
	}
	return r
}

// evictIfFull evicts an entry if the table is full, and counts one more entry of a tenant. It
// returns how many it has evicted. The choice among a tenant's entries is random: senders repeat
// their entries in a fixed order, so the oldest one would always be evicted just before its
// repetition. The caller holds f.mu.
func (f *families) evictIfFull(tenant string) (evicted int) {
	if f.shares.Full() {
		from := f.shares.EvictFrom(tenant)
		for family := range f.known[from] {
			delete(f.known[from], family)
			break
		}
		if f.shares.Add(from, -1); len(f.known[from]) == 0 {
			delete(f.known, from)
		}
		evicted = 1
	}
	f.shares.Add(tenant, 1)
	if f.known[tenant] == nil {
		f.known[tenant] = make(map[string]*batch.Metadata)
	}
	return evicted
}

// describe sets the metadata of each series in a tenant's batch.
func (f *families) describe(tenant string, b *batch.Batch) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	known := f.known[tenant]
	if len(known) == 0 {
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
			name, metadata = n, familyOf(known, n)
		}
		s.Metadata = metadata
	}
}

// familyOf returns the metadata of a series' family, or nil. The family has the series' name, or for
// some types that name without a suffix.
func familyOf(known map[string]*batch.Metadata, name string) *batch.Metadata {
	if m := known[name]; m != nil {
		return m
	}
	if at := strings.LastIndexByte(name, '_'); at > 0 {
		if m := known[name[:at]]; m != nil && hasSuffix(m.Type, name[at:]) {
			return m
		}
	}
	return nil
}

// hasSuffix reports whether series of a family of this type have names with a suffix.
func hasSuffix(t batch.MetricType, suffix string) bool {
	switch suffix {
	case "_bucket":
		return t == batch.TypeHistogram || t == batch.TypeGaugeHistogram
	case "_sum", "_count":
		return t == batch.TypeHistogram || t == batch.TypeSummary
	case "_gsum", "_gcount":
		return t == batch.TypeGaugeHistogram
	case "_total":
		return t == batch.TypeCounter
	case "_created":
		return t == batch.TypeCounter || t == batch.TypeHistogram || t == batch.TypeSummary
	case "_info":
		return t == batch.TypeInfo
	}
	return false
}
