package read

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// readerEnd is where a partition ends.
type readerEnd struct {
	id        record.MessageID // its entry is -1 when there is nothing
	published time.Time        // known where reading begins at a time
	unshown   bool             // no message stands between the position and it
}

// readerGoal is an end of all partitions that a reader is to reach. Only the goroutine that
// reads uses it.
type readerGoal struct {
	left    map[int]record.MessageID // the ends that are not reached
	heard   map[int]bool             // partitions that have delivered since the last look
	silence map[int]readerSilence
	ask     time.Duration // how long a partition is silent until it is asked for its end
	timer   *time.Timer   // fires when it is time to look
	answers chan map[int]readerEnd
}

// readerSilence is what was answered while a partition delivered nothing.
type readerSilence struct {
	end   record.MessageID
	times int // it was answered so
}

// sameEnds is how many times a silent partition has the same end until what stands before the end
// is looked at.
const sameEnds = 3

func newReaderGoal(ends map[int]readerEnd, ask time.Duration) *readerGoal {
	g := &readerGoal{
		left: make(map[int]record.MessageID), heard: make(map[int]bool), silence: make(map[int]readerSilence),
		ask: ask, timer: time.NewTimer(ask), answers: make(chan map[int]readerEnd, 1),
	}
	for partition, end := range ends {
		if record.EntryOf(end.id).Entry() >= 0 {
			g.left[partition] = end.id
		}
	}
	return g
}

func (g *readerGoal) reached() bool { return len(g.left) == 0 }

// note takes notice of a position.
func (g *readerGoal) note(id record.MessageID) {
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
func (g *readerGoal) silent(all []*readerPartition) []*readerPartition {
	var out []*readerPartition
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
func (g *readerGoal) lower(ends map[int]readerEnd, positions []record.MessageID) (unshown map[int]record.MessageID) {
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
		answered := readerSilence{end: was, times: 1}
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

// doubtful reports whether it is to be looked at what stands before a partition's end.
func (g *readerGoal) doubtful(partition int) bool { return g.silence[partition].times >= sameEnds }

// waits reports whether a partition's end was just looked at for the first time, and is still left.
func (g *readerGoal) waits(partition int) bool {
	_, left := g.left[partition]
	return left && g.silence[partition].times == sameEnds+1
}

// ends asks for the end of each partition until it is known, or ctx ends.
func (r *Reader) ends(ctx context.Context, partitions []*readerPartition, compacted bool) (map[int]readerEnd, error) {
	found := make([]readerEnd, len(partitions))
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
	ends := make(map[int]readerEnd, len(partitions))
	for i, p := range partitions {
		ends[p.index] = found[i]
	}
	return ends, nil
}

// end asks once for the end of p, or of what compaction has left of it.
func (p *readerPartition) end(ctx context.Context, compacted bool) (readerEnd, error) {
	c := p.r.parent
	return cluster.CallWithTimeout(ctx, c.Cluster, func() (readerEnd, error) {
		raw, err := c.lastID(p.topic, compacted)
		if err != nil {
			return readerEnd{}, err
		}
		end := readerEnd{id: record.IDOf(raw, p.index)}
		if !p.r.cfg.since().IsZero() && record.EntryOf(end.id).Entry() >= 0 {
			reading, cancel := context.WithTimeout(ctx, c.CallTimeout())
			defer cancel()
			switch last, err := c.last(reading, p.topic); {
			case errors.Is(err, errUnshown):
				end.published = p.r.cfg.since() // younger ones may stand before it
			case err != nil:
				return readerEnd{}, err
			case last != nil:
				end.published = last.PublishTime
			}
		}
		return end, nil
	}, nil)
}
