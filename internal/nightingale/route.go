package nightingale

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

// deliver is the publishing stage.
func (v *receiver) deliver(ctx context.Context, c *claim, out *outgoing) delivered {
	return v.topics.publish(ctx, out, c.stored)
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
	noTopic    = -2 // it cannot be opened
	storedPart = -3 // it was stored when the body came before
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
	find := t.finder(out, &mine.stored)
	if !t.template.perSeries {
		// One topic for all, of metadata too.
		s.name = t.template.render(s.name[:0], tenant, nil)
		if part := find(s.name); part >= 0 {
			s.groups = append(s.groups[:0], extent{0, int32(len(b.series))})
			return s.groups, nil
		}
	} else {
		b.metadata = b.metadata[:0] // whose topic would be a guess
	}
	s.group = slices.Grow(s.group[:0], len(b.series))[:len(b.series)]
	for i := range b.series {
		one := &b.series[i]
		if t.template.perSeries {
			s.name = t.template.render(s.name[:0], tenant, of(b.labels, one.labels))
		}
		group := find(s.name)
		if overflow := t.cfg.OverflowTopic; overflow != "" && (group == tooMany || group == noTopic) {
			if group = find([]byte(overflow)); group >= 0 {
				t.metrics.overflow.Add(float64(one.entries()))
			}
		}
		if group == tooMany || group == noTopic {
			t.refuse(b, c, one, group)
		}
		s.group[i] = int32(group)
	}
	if t.background.Err() != nil {
		t.releaseAll(out) // what was not found may just not be opened any more
		return nil, unavailable("stopping", retryAway, "the service is stopping")
	}
	return s.sort(b, len(out.parts)), nil
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

// finder returns a function that finds the part of a topic, or acquires it, or
// returns why there is none.
func (t *topics) finder(out *outgoing, stored *storedParts) func(name []byte) int {
	var parts map[string]int
	last := -1
	return func(name []byte) int {
		if last >= 0 && out.parts[last].topic.name == string(name) {
			return last
		}
		part, known := parts[string(name)]
		if !known {
			if parts == nil {
				parts = map[string]int{}
			}
			part = t.take(out, stored, name)
			parts[string(name)] = part
		}
		last = part
		return part
	}
}

// take adds a part for a topic, or returns why there is none.
func (t *topics) take(out *outgoing, stored *storedParts, name []byte) int {
	if stored.in(name) {
		return storedPart
	}
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
		reason, text = "topic_refused", "its topic cannot be opened"
	}
	c.invalid.add(reason, s, func() string { return display(b.labelsOf(s)) + ": " + text })
	c.valid.remove(s)
}
