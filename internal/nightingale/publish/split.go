package publish

import (
	"context"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/topic"
)

// grouping is the memory for sorting series by topic.
type grouping struct {
	name    []byte
	parts   []int32 // part of each series, or why it has none; empty: all series are of one part
	series  []batch.Series
	extents []batch.Extent // of the series of each part
}

// Why a series has no part.
const (
	tooManyTopics = -1
	topicRefused  = -2 // the topic cannot be opened, or was terminated
)

// storedPart is the part of a request that an attempt has stored.
type storedPart struct {
	series   seriesSet
	tooLarge batch.Counts // contents of messages that the broker does not accept
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

// split makes a part for each topic of the series, waits until its topic is open, and sorts the
// series by part. It returns the extent of each part's series. Series without a topic count as
// invalid.
func (p *publication) split(ctx context.Context) ([]batch.Extent, error) {
	tenant := p.Key.Tenant
	if p.Template.Tenant {
		if tenant == "" {
			tenant = p.cfg.Topics.DefaultTenant
		}
		if err := topic.CheckTenant(tenant); err != nil {
			return nil, err
		}
	}
	b, s := &p.Space.Batch, &p.Space.grouping
	for p.assign(tenant); !p.awaitParts(ctx); p.assign(tenant) {
		p.releaseAll()
	}
	for i, part := range s.parts {
		if part >= 0 {
			continue
		}
		if p.ctx.Err() != nil { // the topic may be missing only because of that
			return nil, refusal.Unavailable("stopping", refusal.RetryUnavailable, "the service is stopping")
		}
		p.reject(&b.Series[i], part)
	}
	for i := range p.Out.parts {
		p.metrics.overflow.Add(float64(p.Out.parts[i].overflowed))
	}
	s.sort(b, len(p.Out.parts))
	return s.extents, nil
}

// assign assigns each series to a part, and acquires the topics.
func (p *publication) assign(tenant string) {
	b, s := &p.Space.Batch, &p.Space.grouping
	s.parts, p.last, p.full = s.parts[:0], -1, false
	if !p.Template.PerSeries {
		s.name = p.Template.Render(s.name, tenant, nil)
		if p.addPart(s.name) >= 0 {
			return // one topic for all series
		}
	}
	p.byTopic = make(map[string]int)
	for i := range b.Series {
		one := &b.Series[i]
		if p.Template.PerSeries {
			s.name = p.Template.Render(s.name, tenant, batch.Slice(b.Labels, one.Labels))
		}
		n := p.partOf(s.name)
		overflows := n < 0 && p.cfg.Topics.OverflowTopic != ""
		if overflows {
			n = p.partOf([]byte(p.cfg.Topics.OverflowTopic))
		}
		if n >= 0 {
			part := &p.Out.parts[n]
			part.series.add(one)
			if overflows && part.topic != nil {
				part.overflowed += one.Entries()
			}
		}
		s.parts = append(s.parts, int32(n))
	}
}

// partOf returns the part of a topic, or why the topic has none.
func (p *publication) partOf(name []byte) int {
	if p.last >= 0 && p.Out.parts[p.last].name == string(name) {
		return p.last
	}
	n, known := p.byTopic[string(name)]
	if !known {
		n = p.addPart(name)
		p.byTopic[string(name)] = n
	}
	p.last = n
	return n
}

// addPart adds a part for a topic, or returns why it cannot.
func (p *publication) addPart(name []byte) int {
	if stored, ok := p.stored[string(name)]; ok {
		p.Out.parts = append(p.Out.parts, part{name: string(name), storedPart: storedPart{tooLarge: stored.tooLarge}})
		return len(p.Out.parts) - 1
	}
	topic := p.acquire(p.Key.Tenant, name, !p.full)
	if topic == nil {
		p.full = true
		return tooManyTopics
	}
	if !p.usable(topic) {
		p.release(topic)
		return topicRefused
	}
	p.Out.parts = append(p.Out.parts, part{name: topic.name, topic: topic})
	return len(p.Out.parts) - 1
}

// awaitParts waits until the topics of all parts are open. A part whose topic is only late gets an
// error. awaitParts returns false if the series must be assigned again: a topic cannot be opened, or
// a stored part has other series than would go to its topic now.
func (p *publication) awaitParts(ctx context.Context) (ok bool) {
	ok = true
	for i := range p.Out.parts {
		part := &p.Out.parts[i]
		if part.topic == nil {
			if part.series != p.stored[part.name].series {
				delete(p.stored, part.name)
				ok = false
			}
		} else if part.err = part.topic.await(ctx); part.err != nil && !p.usable(part.topic) {
			ok = false
		}
	}
	return ok
}

// reject counts a series as invalid instead of valid.
func (p *publication) reject(s *batch.Series, why int32) {
	reason, text := "max_topics", "its topic cannot be opened, because topics.max_topics topics are open"
	if why == topicRefused {
		reason, text = "topic_refused", "its topic cannot be opened, or was terminated"
	}
	b := &p.Space.Batch
	p.Contents.Invalid.Add(reason, s, func() string { return batch.Display(b.LabelsOf(s)) + ": " + text })
	p.Contents.Valid.Subtract(s.Counts())
}

// sort sorts the series by their n parts, and removes those without a part.
func (s *grouping) sort(b *batch.Batch, n int) {
	s.extents = append(s.extents[:0], make([]batch.Extent, n)...)
	if len(s.parts) == 0 {
		if n > 0 {
			s.extents[0] = batch.Until(batch.Extent{}, b.Series)
		}
		return
	}
	for _, part := range s.parts {
		if part >= 0 {
			s.extents[part].To++
		}
	}
	begin := int32(0)
	for i := range s.extents {
		e := &s.extents[i]
		e.From, e.To, begin = begin, begin, begin+e.To
	}
	s.series = append(s.series[:0], b.Series[:begin]...)
	for i, part := range s.parts {
		if part >= 0 {
			s.series[s.extents[part].To] = b.Series[i]
			s.extents[part].To++
		}
	}
	b.Series, s.series = s.series, b.Series
	clear(s.series[:cap(s.series)]) // keep no strings of the body
}
