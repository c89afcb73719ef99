package publish

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
)

// Metrics are the metrics of topics. None has the topic as a label, because senders choose the
// topics.
type Metrics struct {
	open     prometheus.Gauge
	overflow prometheus.Counter
	dropped  prometheus.Counter
}

// NewMetrics registers the metrics of topics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nightingale_topics", Help: "Topics that are open or being opened: one, or those that a topic with placeholders makes.",
		}),
		overflow: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nightingale_topic_overflow_samples_total",
			Help: "Samples of all kinds that went to topics.overflow_topic: topics.max_topics left no topic for them, or theirs did not open.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nightingale_dropped_messages_total",
			Help: "Messages that were answered 204 under ack: queued and could not be stored afterwards.",
		}),
	}
	reg.MustRegister(m.open, m.overflow, m.dropped)
	return m
}

// Workspace is the memory for decoding a request and encoding its messages.
type Workspace struct {
	Batch    batch.Batch
	Packing  format.Packing
	grouping grouping
}

// Reset prepares it for another request.
func (w *Workspace) Reset() {
	w.Batch.Reset()
	w.Packing.Reset()
}

// Size returns the size of the memory in bytes.
func (w *Workspace) Size() int { return w.Batch.Size() + w.Packing.Size() }

// grouping is the memory for sorting series by topic.
type grouping struct {
	name   []byte
	group  []int32 // part of each series, or why it has none
	series []batch.Series
	groups []batch.Extent // extents of the series of each part
}

// Why a series has no part.
const (
	tooMany       = -1 // topics
	noTopic       = -2 // the topic cannot be opened, or was terminated
	alreadyStored = -3 // an earlier attempt at this body has stored it; lower numbers mean the same
)

// openParts sorts the batch's series by topic and acquires the topics, as out.parts. It waits for
// topics that are being opened, and returns the extent of each part's series. If a topic cannot be
// opened, openParts sorts the series again without it.
func (t *Topics) openParts(ctx context.Context, r Request) ([]batch.Extent, error) {
	out := r.Out
	for {
		groups, err := t.split(r)
		if err != nil {
			return nil, err
		}
		again := false
		for i := range out.parts {
			part := &out.parts[i]
			if part.err = t.await(ctx, part.topic); part.err != nil {
				again = again || t.avoid(part.topic) != 0
			}
		}
		if !again {
			for i := range out.parts {
				t.metrics.overflow.Add(float64(out.parts[i].overflowed))
			}
			return groups, nil
		}
		t.releaseAll(out)
	}
}

// avoid returns why the series must not wait for a topic, 0 if they may. It also avoids a topic
// that takes long to open if there is an overflow topic.
func (t *Topics) avoid(e *topic) int {
	switch {
	case e.pinned:
		return 0 // if it cannot be opened, the service ends: see Run
	case e.refused() != nil:
		return noTopic
	case t.cfg.OverflowTopic != "" && !e.open() && !time.Now().Before(e.until):
		return noTopic
	default:
		return 0
	}
}

// split sorts the batch's series by topic.
func (t *Topics) split(r Request) (groups []batch.Extent, err error) {
	tenant, space, out := r.Key.Tenant, r.Space, r.Out
	if t.Template.Tenant {
		if tenant == "" {
			tenant = t.cfg.DefaultTenant
		}
		if err := CheckTenant(tenant); err != nil {
			return nil, err
		}
	}
	b, s := &space.Batch, &space.grouping
	if !t.Template.PerSeries {
		// One topic for all series, and for metadata.
		s.name = t.Template.render(s.name[:0], tenant, nil)
		if part := (&finder{topics: t, request: r}).take(s.name); part >= 0 {
			s.groups = append(s.groups[:0], batch.Extent{From: 0, To: int32(len(b.Series))})
			return s.groups, nil
		}
	} else {
		b.Metadata = b.Metadata[:0] // the topic of metadata would be a guess
	}
	for !t.group(r, tenant) {
		t.releaseAll(out)
	}
	for i, group := range s.group {
		if group == tooMany || group == noTopic {
			t.refuse(b, r.Contents, &b.Series[i], int(group))
		}
	}
	if t.background.Err() != nil {
		t.releaseAll(out) // a missing topic may be missing only because of the stop
		return nil, refusal.Unavailable("stopping", refusal.RetryUnavailable, "the service is stopping")
	}
	return s.sort(b, len(out.parts)), nil
}

// group finds the part of each series, or why it has none. If a stored part has other series than
// would go to its topic now, group ignores the stored part and returns false: the caller must try
// again.
func (t *Topics) group(r Request, tenant string) bool {
	b, s := &r.Space.Batch, &r.Space.grouping
	f := finder{topics: t, request: r, last: noTopic}
	s.group = slices.Grow(s.group[:0], len(b.Series))[:len(b.Series)]
	for i := range b.Series {
		one := &b.Series[i]
		if t.Template.PerSeries || i == 0 {
			s.name = t.Template.render(s.name[:0], tenant, batch.Slice(b.Labels, one.Labels))
		}
		group := f.find(s.name)
		overflows := (group == tooMany || group == noTopic) && t.cfg.OverflowTopic != ""
		if overflows {
			group = f.find([]byte(t.cfg.OverflowTopic))
		}
		f.add(group, one, overflows)
		s.group[i] = int32(group)
	}
	same := true
	for _, kept := range f.kept {
		if r.stored[kept.name].series != kept.set {
			r.stored = r.stored.without(kept.name)
			same = false
		}
	}
	return same
}

// sort orders the series by their n parts, and drops those without a part.
func (s *grouping) sort(b *batch.Batch, n int) []batch.Extent {
	s.groups = append(s.groups[:0], make([]batch.Extent, n)...)
	groups := s.groups
	for _, g := range s.group {
		if g >= 0 {
			groups[g].To++
		}
	}
	begin := int32(0)
	for g := range groups {
		groups[g].From, begin = begin, begin+groups[g].To
		groups[g].To = groups[g].From
	}
	s.series = append(s.series[:0], b.Series[:begin]...)
	for i, g := range s.group {
		if g >= 0 {
			s.series[groups[g].To] = b.Series[i]
			groups[g].To++
		}
	}
	b.Series, s.series = s.series, b.Series
	clear(s.series[:cap(s.series)]) // keep no strings of the body
	return groups
}

// finder finds the parts of topics, and acquires them.
type finder struct {
	topics  *Topics
	request Request
	parts   map[string]int
	last    int
	name    string // of the topic of part last
	kept    []keptPart
	full    bool // there was no place for a topic, and none is made for others
}

// keptPart is a part that is already stored, if its set of series is unchanged.
type keptPart struct {
	name string
	set  seriesSet
}

// seriesSet is a hash of a set of series in a body. Which series go to a topic can change between
// two attempts at the same body, see TopicsConfig.
type seriesSet uint64

// add adds a series, identified by the position of its labels. It adds up SplitMix64 hashes of the
// positions, so that different sets have different sums.
func (s *seriesSet) add(one *batch.Series) {
	x := (uint64(one.Labels.From) + 1) * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	*s += seriesSet(x ^ x>>31)
}

// find returns the part of a topic, or why the topic has none.
func (f *finder) find(name []byte) int {
	if f.name == string(name) && f.name != "" {
		return f.last
	}
	part, known := f.parts[string(name)]
	if !known {
		if f.parts == nil {
			f.parts = map[string]int{}
		}
		if _, stored := f.request.stored[string(name)]; stored {
			part = alreadyStored - len(f.kept)
			f.kept = append(f.kept, keptPart{name: string(name)})
		} else {
			part = f.take(name)
		}
		f.parts[string(name)] = part
	}
	if f.last = part; part >= 0 {
		f.name = f.request.Out.parts[part].topic.name
	} else {
		f.name = ""
	}
	return part
}

// add counts a series to its part.
func (f *finder) add(part int, one *batch.Series, overflows bool) {
	switch {
	case part <= alreadyStored:
		f.kept[alreadyStored-part].set.add(one)
	case part >= 0:
		p := &f.request.Out.parts[part]
		p.series.add(one)
		if overflows {
			p.overflowed += one.Entries()
		}
	}
}

// take adds a part for a topic, or returns why it cannot.
func (f *finder) take(name []byte) int {
	t, r := f.topics, f.request
	e := t.acquire(r.Key.Tenant, name, !f.full)
	if e == nil {
		f.full = true
		return tooMany
	}
	if why := t.avoid(e); why != 0 {
		t.release(e)
		return why
	}
	r.Out.parts = append(r.Out.parts, topicPart{topic: e})
	return len(r.Out.parts) - 1
}

// refuse counts a series as invalid instead of valid.
func (t *Topics) refuse(b *batch.Batch, c *batch.Contents, s *batch.Series, why int) {
	reason, text := "max_topics", "no further topic may be opened (topics.max_topics)"
	if why == noTopic {
		reason, text = "topic_refused", "its topic cannot be opened, or was terminated"
	}
	c.Invalid.Add(reason, s, func() string { return batch.Display(b.LabelsOf(s)) + ": " + text })
	c.Valid.Remove(s)
}
