package read

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// partitionEnd is where a partition ends.
type partitionEnd struct {
	id        record.MessageID // its entry is -1 when there is nothing
	published time.Time        // known where reading begins at a time
	unshown   bool             // no message stands between the position and it
}

// goal is an end of all partitions that a reader is to reach. Only the goroutine that
// reads uses it.
type goal struct {
	left    map[int]record.MessageID // the ends that are not reached
	heard   map[int]bool             // partitions that have delivered since the last look
	silence map[int]silence
	ask     time.Duration // how long a partition is silent until it is asked for its end
	timer   *time.Timer   // fires when it is time to look
	answers chan map[int]partitionEnd
}

// silence has the brokers' answers while a partition delivered nothing.
type silence struct {
	end   record.MessageID
	times int // it was answered so
}

// sameEnds is how many times a silent partition has the same end until what stands before the end
// is looked at.
const sameEnds = 3

func newGoal(ends map[int]partitionEnd, ask time.Duration) *goal {
	g := &goal{
		left: make(map[int]record.MessageID), heard: make(map[int]bool), silence: make(map[int]silence),
		ask: ask, timer: time.NewTimer(ask), answers: make(chan map[int]partitionEnd, 1),
	}
	for partition, end := range ends {
		if record.EntryOf(end.id).Entry() >= 0 {
			g.left[partition] = end.id
		}
	}
	return g
}

func (g *goal) reached() bool { return len(g.left) == 0 }

// note records a position.
func (g *goal) note(id record.MessageID) {
	partition := id.Partition()
	end, ok := g.left[partition]
	if !ok {
		return
	}
	g.heard[partition] = true
	delete(g.silence, partition)
	if id.Compare(end) >= 0 {
		delete(g.left, partition)
	}
}

// silent are those of all that have an end left and have delivered nothing since the last
// call.
func (g *goal) silent(all []*partition) []*partition {
	var out []*partition
	for _, p := range all {
		if _, ok := g.left[p.index]; ok && !g.heard[p.index] {
			out = append(out, p)
		}
	}
	clear(g.heard)
	return out
}

// lower takes over ends that are nearer than they were. A position may be behind one already. It
// returns the ends before which no message is left: they count as reached.
func (g *goal) lower(ends map[int]partitionEnd, positions []record.MessageID) (unshown map[int]record.MessageID) {
	unshown = make(map[int]record.MessageID)
	for partition, end := range ends {
		was, ok := g.left[partition]
		if !ok {
			continue
		}
		if end.id.Compare(was) < 0 {
			g.left[partition] = end.id
		}
		was = g.left[partition]
		answered := silence{end: was, times: 1}
		if last := g.silence[partition]; last.end == was {
			answered.times += last.times
		}
		g.silence[partition] = answered
		switch {
		case record.EntryOf(was).Entry() < 0:
			delete(g.left, partition)
		case end.unshown && end.id == was && answered.times > sameEnds:
			delete(g.left, partition)
			unshown[partition] = was
		}
	}
	for _, id := range positions {
		if end, ok := g.left[id.Partition()]; ok && id.Compare(end) >= 0 {
			delete(g.left, id.Partition())
		}
	}
	g.timer.Reset(g.ask)
	return unshown
}

// doubtful reports whether to look at what stands before a partition's end.
func (g *goal) doubtful(partition int) bool { return g.silence[partition].times >= sameEnds }

// waits reports whether a partition's end was just looked at for the first time, and is still left.
func (g *goal) waits(partition int) bool {
	_, left := g.left[partition]
	return left && g.silence[partition].times == sameEnds+1
}

// ends asks for the end of each partition until it is known, or ctx ends.
func (r *Reader) ends(ctx context.Context, partitions []*partition, compacted bool) (map[int]partitionEnd, error) {
	found := make([]partitionEnd, len(partitions))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cluster.ReaderAsks)
	for i, p := range partitions {
		group.Go(func() error {
			return cluster.Insist(ctx, r.log, func() (err error) {
				found[i], err = p.end(ctx, compacted)
				return err
			})
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	ends := make(map[int]partitionEnd, len(partitions))
	for i, p := range partitions {
		ends[p.index] = found[i]
	}
	return ends, nil
}

// end asks once for the end of p, or of what compaction has left of it.
func (p *partition) end(ctx context.Context, compacted bool) (partitionEnd, error) {
	c := p.r.parent
	return cluster.CallWithTimeout(ctx, c.Cluster, func() (partitionEnd, error) {
		raw, err := c.lastID(p.topic, compacted)
		if err != nil {
			return partitionEnd{}, err
		}
		end := partitionEnd{id: record.IDOf(raw, p.index)}
		if !p.r.cfg.since().IsZero() && record.EntryOf(end.id).Entry() >= 0 {
			reading, cancel := context.WithTimeout(ctx, c.CallTimeout())
			defer cancel()
			switch last, err := c.last(reading, p.topic); {
			case errors.Is(err, errUnshown):
				end.published = p.r.cfg.since() // younger ones may stand before it
			case err != nil:
				return partitionEnd{}, err
			case last != nil:
				end.published = last.PublishTime
			}
		}
		return end, nil
	}, nil)
}
