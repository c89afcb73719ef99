package nightingale

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// topicMetrics are those of topics by template. None has a topic as a label: they
// are senders' choices.
type topicMetrics struct {
	open     prometheus.Gauge
	overflow prometheus.Counter
}

func newTopicMetrics(reg prometheus.Registerer) *topicMetrics {
	m := &topicMetrics{
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nightingale_topics", Help: "Topics open now, of those that a topic with placeholders makes.",
		}),
		overflow: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nightingale_topic_overflow_samples_total",
			Help: "Samples of all kinds that went to topics.overflow_topic because topics.max_topics left no topic for them.",
		}),
	}
	reg.MustRegister(m.open, m.overflow)
	return m
}

// encode makes the messages of a batch, for the one topic or for those of its
// series. What there is no topic for is added to the invalid.
func (v *receiver) encode(ctx context.Context, tenant string, space *workspace, out *outgoing, c *contents) error {
	b := &space.batch
	out.packing.limit = v.messageBytes
	if v.topics == nil {
		return v.encodeFor(v.partitions, b, out)
	}
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	groups, err := v.topics.split(tenant, space, out, c)
	if err != nil {
		return err
	}
	all := b.series
	for i := range groups {
		e := out.parts[i].topic
		if err = v.topics.await(ctx, e); err == nil {
			b.series = all[groups[i].from:groups[i].to]
			out.parts[i].from = len(out.records)
			err = v.encodeFor(e.sink.partitions, b, out)
			out.parts[i].to = len(out.records)
		}
		if err != nil {
			v.topics.releaseAll(out)
			return err
		}
	}
	b.series = all
	return nil
}

// encodeFor encodes for a topic of so many partitions, which only the packed format
// must know.
func (v *receiver) encodeFor(partitions func() int, b *batch, out *outgoing) error {
	if v.format.name == packedFormat && partitions != nil {
		if out.packing.partitions = partitions(); out.packing.partitions == 0 {
			return unavailable("pulsar_away", retryAway, "Pulsar is away: %v", errNotOpen)
		}
	}
	v.format.encode(b, out)
	return nil
}

// deliver is the publishing stage.
func (v *receiver) deliver(ctx context.Context, out *outgoing) (free bool, err error) {
	if v.topics == nil {
		return v.publish(ctx, out.records)
	}
	return v.topics.publish(ctx, out)
}

// splitting is the memory in which series are put in the order of their topics.
type splitting struct {
	name   []byte
	group  []int32 // of each series, -1 for none
	series []series
}

// split sorts the batch's series by topic and acquires the topics, as out.parts. It
// returns the extent of each part's series.
func (t *topics) split(tenant string, space *workspace, out *outgoing, c *contents) (groups []extent, err error) {
	if t.template.tenant {
		if tenant == "" {
			tenant = t.cfg.DefaultTenant
		}
		if err := checkTopicTenant(tenant); err != nil {
			return nil, err
		}
	}
	b, s := &space.batch, &space.splitting
	find := t.finder(out)
	s.group = slices.Grow(s.group[:0], len(b.series))[:len(b.series)]
	if !t.template.perSeries {
		// One topic for all, of metadata too.
		s.name = t.template.render(s.name[:0], tenant, nil)
		find(s.name)
	} else {
		b.metadata = b.metadata[:0] // whose topic would be a guess
	}
	for i := range b.series {
		one := &b.series[i]
		if t.template.perSeries {
			s.name = t.template.render(s.name[:0], tenant, of(b.labels, one.labels))
		}
		group := find(s.name)
		if group < 0 && t.cfg.OverflowTopic != "" {
			if group = find([]byte(t.cfg.OverflowTopic)); group >= 0 {
				t.metrics.overflow.Add(float64(one.entries()))
			}
		}
		if group < 0 {
			t.refuse(b, c, one)
		}
		s.group[i] = int32(group)
	}
	if t.background.Err() != nil {
		t.releaseAll(out) // what was not found may just not be opened any more
		return nil, unavailable("stopping", retryAway, "the service is stopping")
	}
	groups = make([]extent, len(out.parts))
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
	return groups, nil
}

// finder returns a function that finds the part of a topic, or acquires it, or
// returns -1.
func (t *topics) finder(out *outgoing) func(name []byte) int {
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
			part = -1
			if e := t.acquire(name); e != nil {
				part = len(out.parts)
				out.parts = append(out.parts, addressed{topic: e})
			}
			parts[string(name)] = part
		}
		last = part
		return part
	}
}

// refuse moves a series from the valid to the invalid.
func (t *topics) refuse(b *batch, c *contents, s *series) {
	c.invalid.add("max_topics", s, func() string {
		return display(of(b.labels, s.labels)) + ": no further topic may be opened (topics.max_topics)"
	})
	c.valid.remove(s)
}
