package nightingale

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/door"
)

// topicMetrics are those of topics. None has a topic as a label: they
// are senders' choices.
type topicMetrics struct {
	open     prometheus.Gauge
	overflow prometheus.Counter
}

func newTopicMetrics(reg prometheus.Registerer) *topicMetrics {
	m := &topicMetrics{
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nightingale_topics", Help: "Topics that are open or being opened: one, or those that a topic with placeholders makes.",
		}),
		overflow: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nightingale_topic_overflow_samples_total",
			Help: "Samples of all kinds that went to topics.overflow_topic: topics.max_topics left no topic for them, or theirs did not open.",
		}),
	}
	reg.MustRegister(m.open, m.overflow)
	return m
}

// encode makes the messages of a batch, for the topics of its series. What there is
// no topic for is added to the invalid. A part whose topic is not open is left out,
// with its error: the others are published.
func (v *receiver) encode(ctx context.Context, mine *claim, space *workspace, out *outgoing, c *contents) error {
	b := &space.batch
	out.packing.limit = v.messageBytes
	groups, err := v.topics.openParts(ctx, mine, space, out, c)
	if err != nil {
		return err
	}
	all := b.series
	for i := range groups {
		part := &out.parts[i]
		part.from = len(out.records)
		if part.err == nil {
			b.series = all[groups[i].from:groups[i].to]
			out.packing.partitions = part.topic.sink.partitions()
			if v.format.encode(b, out); out.err != nil {
				v.topics.releaseAll(out)
				return out.err
			}
		}
		part.to = len(out.records)
	}
	b.series = all
	return nil
}

// deliver is the publishing stage. held takes what the messages hold.
func (v *receiver) deliver(ctx context.Context, c *claim, out *outgoing, held *door.Hold) delivered {
	return v.topics.publish(ctx, out, c.stored, held)
}

// splitting is the memory in which series are put in the order of their topics.
type splitting struct {
	name   []byte
	group  []int32 // of each series, or why it has none
	series []series
	groups []extent // of the series of each part
}

// Why a series has no part.
const (
	tooMany    = -1 // topics
	noTopic    = -2 // it cannot be opened, or was terminated
	storedPart = -3 // it was stored when the body came before; so do all below
)

// openParts sorts the batch's series by topic and acquires the topics, as out.parts.
// It waits for those that are being opened, and returns the extent of each part's
// series. Series whose topic turns out to be one that cannot be opened are sorted
// again, without it.
func (t *topics) openParts(ctx context.Context, mine *claim, space *workspace, out *outgoing, c *contents) ([]extent, error) {
	for {
		groups, err := t.split(mine, space, out, c)
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

// avoid returns why the series of a topic must not wait for it, 0 when they may. One
// that takes long to open is avoided where its series have another topic to go to.
func (t *topics) avoid(e *topic) int {
	switch {
	case e.pinned:
		return 0 // the service ends without it, see run
	case e.refused() != nil:
		return noTopic
	case t.cfg.OverflowTopic != "" && !e.open() && !time.Now().Before(e.until):
		return noTopic
	default:
		return 0
	}
}

// split sorts the batch's series by topic.
func (t *topics) split(mine *claim, space *workspace, out *outgoing, c *contents) (groups []extent, err error) {
	tenant := mine.key.tenant
	if t.template.tenant {
		if tenant == "" {
			tenant = t.cfg.DefaultTenant
		}
		if err := checkTopicTenant(tenant); err != nil {
			return nil, err
		}
	}
	b, s := &space.batch, &space.splitting
	if !t.template.perSeries {
		// One topic for all, of metadata too.
		s.name = t.template.render(s.name[:0], tenant, nil)
		if part := t.take(out, s.name); part >= 0 {
			s.groups = append(s.groups[:0], extent{0, int32(len(b.series))})
			return s.groups, nil
		}
	} else {
		b.metadata = b.metadata[:0] // whose topic would be a guess
	}
	for !t.group(mine, space, out, tenant) {
		t.releaseAll(out)
	}
	for i, group := range s.group {
		if group == tooMany || group == noTopic {
			t.refuse(b, c, &b.series[i], int(group))
		}
	}
	if t.background.Err() != nil {
		t.releaseAll(out) // what was not found may just not be opened any more
		return nil, door.Unavailable("stopping", door.RetryAway, "the service is stopping")
	}
	return s.sort(b, len(out.parts)), nil
}

// group finds the part of each series, or why it has none. It reports false when what
// is stored is not what would go there now: then it counts for nothing, and the caller
// tries again.
func (t *topics) group(mine *claim, space *workspace, out *outgoing, tenant string) bool {
	b, s := &space.batch, &space.splitting
	f := finder{topics: t, out: out, stored: mine.stored.topics, last: noTopic}
	s.group = slices.Grow(s.group[:0], len(b.series))[:len(b.series)]
	for i := range b.series {
		one := &b.series[i]
		if t.template.perSeries || i == 0 {
			s.name = t.template.render(s.name[:0], tenant, of(b.labels, one.labels))
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
		if mine.stored.topics[kept.name] != kept.set {
			mine.stored.forget(kept.name)
			same = false
		}
	}
	return same
}

// sort puts the series of each of n parts together, and drops those without a part.
func (s *splitting) sort(b *batch, n int) []extent {
	s.groups = append(s.groups[:0], make([]extent, n)...)
	groups := s.groups
	for _, g := range s.group {
		if g >= 0 {
			groups[g].to++
		}
	}
	begin := int32(0)
	for g := range groups {
		groups[g].from, begin = begin, begin+groups[g].to
		groups[g].to = groups[g].from
	}
	s.series = append(s.series[:0], b.series[:begin]...)
	for i, g := range s.group {
		if g >= 0 {
			s.series[groups[g].to] = b.series[i]
			groups[g].to++
		}
	}
	b.series, s.series = s.series, b.series
	clear(s.series[:cap(s.series)]) // no strings of the body stay
	return groups
}

// finder finds the parts of topics, and acquires them.
type finder struct {
	topics *topics
	out    *outgoing
	stored map[string]seriesSet
	parts  map[string]int
	last   int
	name   string // of last
	kept   []keptPart
}

// keptPart is a part that is stored already, if it has the same series as then.
type keptPart struct {
	name string
	set  seriesSet
}

// seriesSet tells sets of a body's series apart: which series go to a topic can change
// from one time that a body comes to the next, see TopicsConfig.
type seriesSet uint64

// add adds a series, by the place of its labels, which is its own. The steps are those
// of SplitMix64: they make a sum of places that tells of each.
func (s *seriesSet) add(one *series) {
	x := (uint64(one.labels.from) + 1) * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	*s += seriesSet(x ^ x>>31)
}

// find returns the part of a topic, or why there is none.
func (f *finder) find(name []byte) int {
	if f.name == string(name) && f.name != "" {
		return f.last
	}
	part, known := f.parts[string(name)]
	if !known {
		if f.parts == nil {
			f.parts = map[string]int{}
		}
		if _, stored := f.stored[string(name)]; stored {
			part = storedPart - len(f.kept)
			f.kept = append(f.kept, keptPart{name: string(name)})
		} else {
			part = f.topics.take(f.out, name)
		}
		f.parts[string(name)] = part
	}
	if f.last = part; part >= 0 {
		f.name = f.out.parts[part].topic.name
	} else {
		f.name = ""
	}
	return part
}

// add counts a series to its part.
func (f *finder) add(part int, one *series, overflows bool) {
	switch {
	case part <= storedPart:
		f.kept[storedPart-part].set.add(one)
	case part >= 0:
		p := &f.out.parts[part]
		p.series.add(one)
		if overflows {
			p.overflowed += one.entries()
		}
	}
}

// take adds a part for a topic, or returns why there is none.
func (t *topics) take(out *outgoing, name []byte) int {
	e := t.acquire(name)
	if e == nil {
		return tooMany
	}
	if why := t.avoid(e); why != 0 {
		t.release(e)
		return why
	}
	out.parts = append(out.parts, addressed{topic: e})
	return len(out.parts) - 1
}

// refuse moves a series from the valid to the invalid.
func (t *topics) refuse(b *batch, c *contents, s *series, why int) {
	reason, text := "max_topics", "no further topic may be opened (topics.max_topics)"
	if why == noTopic {
		reason, text = "topic_refused", "its topic cannot be opened, or was terminated"
	}
	c.invalid.add(reason, s, func() string { return display(b.labelsOf(s)) + ": " + text })
	c.valid.remove(s)
}
