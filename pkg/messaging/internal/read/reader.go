package read

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// Reader reads a topic, all of its partitions, without a subscription that a broker keeps:
// the position is the caller's. Each message comes once and none is missing, each
// partition in its order, whatever happens to connections meanwhile.
//
// Next and ReadToEnd are for one goroutine at a time; the other methods may be called from any.
type Reader struct {
	parent  *Readers
	cfg     ReaderConfig
	log     *zap.Logger
	metrics NamedMetrics

	ctx     context.Context // ends with Close
	stop    context.CancelCauseFunc
	running sync.WaitGroup // what works for the reader
	ended   chan struct{}  // nothing does any more

	read chan readMessage // from the partitions, in no order among them

	mu         sync.Mutex
	partitions map[int]*partition

	opening  *goal // the end when the reader was opened; nil when it was reached
	caughtUp chan struct{}
	unshown  map[int]record.MessageID // ends that bring no message, of partitions that were silent since
}

// readMessage is a message that a partition has read. A nil delivery only moves the position.
type readMessage struct {
	p  *partition
	id record.MessageID
	d  *record.Delivery
}

// Open opens a reader: see the client's Reader.
func (c *Readers) Open(ctx context.Context, cfg ReaderConfig) (*Reader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("messaging: reader: %w", err)
	}
	if err := c.Enter(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	r := &Reader{
		parent: c, cfg: cfg, log: c.Log.Named("reader").With(zap.String("topic", cfg.Topic)),
		metrics: c.metrics.of(cfg.Name), ended: make(chan struct{}), read: make(chan readMessage),
		partitions: make(map[int]*partition), caughtUp: make(chan struct{}),
		unshown: make(map[int]record.MessageID),
	}
	r.ctx, r.stop = context.WithCancelCause(context.Background())
	forget := context.AfterFunc(c.Life, func() { r.end(record.ErrClosed) })
	err := r.open(ctx)
	if err != nil {
		r.stop(record.ErrClosed)
	}
	go func() {
		<-r.ctx.Done()
		forget()
		r.running.Wait()
		c.Leave()
		close(r.ended)
	}()
	if err != nil {
		return nil, fmt.Errorf("messaging: open reader for %s: %w", cfg.Topic, err)
	}
	return r, nil
}

// open finds the partitions and their ends, and begins to read.
func (r *Reader) open(ctx context.Context) error {
	ctx, cancel := clientquirks.EitherEnds(ctx, r.ctx)
	defer cancel()
	var topics []string
	err := cluster.Insist(ctx, r.log, func() (err error) {
		topics, err = r.topics(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if kind, _, _ := record.KindOf(r.cfg.from()); kind == record.MessageKind && len(topics) > 1 {
		return fmt.Errorf("from: the topic has %d partitions: name the one that has the message", len(topics))
	}
	found := make([]*partition, len(topics))
	for i, topic := range topics {
		found[i] = r.partition(topic, i)
	}
	ends, err := r.ends(ctx, found, r.cfg.ReadCompacted)
	if err != nil {
		return err
	}
	r.opening = newGoal(ends, r.parent.Waits.Ask)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range found {
		if p.position.IsZero() {
			p.beginFrom(r.cfg.from(), ends[p.index])
		}
		r.opening.note(p.position)
		r.start(p, len(found))
	}
	r.noteCaughtUp()
	r.running.Go(r.discover)
	return nil
}

// partition makes the topic's ith partition.
func (r *Reader) partition(topic string, i int) *partition {
	i = record.PartitionIndex(topic, i)
	p := &partition{
		r: r, topic: topic, index: i, log: r.log.With(zap.Int("partition", i)),
		quiet: quiet{waits: r.parent.Waits},
	}
	p.begin(r.cfg.after(i))
	return p
}

// start begins to read p, one of n. r.mu is held.
func (r *Reader) start(p *partition, n int) {
	p.queue = r.cfg.queueLength(n)
	r.partitions[p.index] = p
	r.running.Go(p.run)
}

// topics asks once for the names of the partitions.
func (r *Reader) topics(ctx context.Context) ([]string, error) {
	return cluster.CallWithTimeout(ctx, r.parent.Cluster, func() ([]string, error) {
		return r.parent.Consumers.TopicPartitions(r.cfg.Topic)
	}, nil)
}

// discover finds new partitions. They are read from their beginning.
func (r *Reader) discover() {
	t := time.NewTicker(r.parent.Waits.Discover)
	defer t.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-t.C:
		}
		topics, err := r.topics(r.ctx)
		if err != nil {
			continue
		}
		r.mu.Lock()
		for i, topic := range topics {
			p := r.partition(topic, i)
			if r.partitions[p.index] == nil && r.ctx.Err() == nil {
				p.log.Info("topic has a new partition")
				r.start(p, len(topics))
			}
		}
		r.mu.Unlock()
	}
}

// Next returns the next message of any partition, and waits for one until ctx ends; then the error
// is ctx's, and Next may be called again. Messages of different partitions come in any order. After
// the reader, or the client, was closed the error is [ErrClosed]. At an encrypted message the error
// is [ErrEncrypted]. Every error but ctx's is final.
func (r *Reader) Next(ctx context.Context) (*record.Delivery, error) {
	for {
		r.noteCaughtUp()
		d, err := r.next(ctx, r.opening)
		if !errors.Is(err, errReadToEnd) {
			return d, err
		}
	}
}

// noteCaughtUp closes caughtUp when the end at opening was reached.
func (r *Reader) noteCaughtUp() {
	if r.opening != nil && r.opening.reached() {
		r.setCaughtUp()
	}
}

func (r *Reader) setCaughtUp() {
	if r.opening != nil {
		r.opening = nil
		close(r.caughtUp)
	}
}

// CaughtUp is closed when all that the topic held when the reader was opened has been read:
// Next returned it, and was called again. With an empty topic, or when reading begins at the
// end, it is closed at once. Where the last entry of a partition brings no message (the beginning
// of one in chunks whose publisher is gone, or a wrong checksum), it takes some seconds of silence.
// It is not closed while the broker dispatches nothing, nor where no entry of a partition brings a
// message: the log says which partition it waits for.
func (r *Reader) CaughtUp() <-chan struct{} { return r.caughtUp }

// ReadToEnd calls h for each message up to the current end of each partition, and returns the
// number of calls. It ends with the first error of h, whose message counts as read, or of ctx.
// Messages that are published meanwhile may be among them. Next does not read these messages again.
// A last entry that brings no message counts as read, as with CaughtUp.
func (r *Reader) ReadToEnd(ctx context.Context, h func(context.Context, *record.Delivery) error) (n int, err error) {
	r.noteCaughtUp()
	// Compaction may have removed the end of the topic. A reader of the compacted part
	// gets no further; a reader that was open before gets all messages.
	compacted := r.cfg.ReadCompacted && r.opening != nil
	asking, cancel := clientquirks.EitherEnds(ctx, r.ctx)
	ends, err := r.ends(asking, r.all(), compacted)
	cancel()
	if err != nil {
		return 0, fmt.Errorf("messaging: read %s to its end: %w", r.cfg.Topic, err)
	}
	for partition, end := range r.unshown {
		if ends[partition].id == end {
			delete(ends, partition)
		}
	}
	goal := newGoal(ends, r.parent.Waits.Ask)
	for _, id := range r.Positions() {
		goal.note(id)
	}
	for {
		r.noteCaughtUp()
		d, err := r.next(ctx, goal)
		if errors.Is(err, errReadToEnd) {
			r.setCaughtUp() // the end at opening was no further
			return n, nil
		}
		if err != nil {
			return n, err
		}
		n++
		if err := h(ctx, d); err != nil {
			return n, err
		}
	}
}

// errReadToEnd: the goal was reached.
var errReadToEnd = errors.New("read to the end")

// next returns the next message, or errReadToEnd once goal, if there is one, is reached.
func (r *Reader) next(ctx context.Context, goal *goal) (*record.Delivery, error) {
	var silence <-chan time.Time
	var answers <-chan map[int]partitionEnd
	if goal != nil {
		silence, answers = goal.timer.C, goal.answers
	}
	for {
		if goal != nil && goal.reached() {
			return nil, errReadToEnd
		}
		select {
		case m := <-r.read:
			r.mu.Lock()
			m.p.position = m.id
			r.mu.Unlock()
			if r.opening != nil {
				r.opening.note(m.id)
			}
			if goal != nil && goal != r.opening {
				goal.note(m.id)
			}
			delete(r.unshown, m.id.Partition())
			if m.d != nil {
				r.metrics.returned(m.d)
				return m.d, nil
			}
		case <-silence:
			r.askAgain(goal)
		case ends := <-answers:
			r.lower(goal, ends)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-r.ctx.Done():
			return nil, context.Cause(r.ctx)
		}
	}
}

// askAgain asks for the ends of the partitions that have been silent: a message that was
// removed after the goal was set, by compaction for instance, never comes. Nor does one that the
// underlying client does not show; where the end stays the same, a separate look says whether
// messages stand before it.
func (r *Reader) askAgain(goal *goal) {
	silent := goal.silent(r.all())
	if len(silent) == 0 {
		goal.timer.Reset(goal.ask)
		return
	}
	doubtful := make(map[int]bool)
	for _, p := range silent {
		doubtful[p.index] = goal.doubtful(p.index)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	positions := make(map[int]record.MessageID)
	for _, p := range silent {
		positions[p.index] = p.position
	}
	if r.ctx.Err() != nil { // nothing may start any more
		return
	}
	r.running.Go(func() {
		var mu sync.Mutex
		ends := make(map[int]partitionEnd)
		var asking errgroup.Group
		asking.SetLimit(cluster.ReaderAsks)
		for _, p := range silent {
			asking.Go(func() error {
				end, err := p.end(r.ctx, r.cfg.ReadCompacted)
				if err != nil {
					return nil
				}
				if doubtful[p.index] {
					end.unshown = p.nothingBehind(r.ctx, positions[p.index])
				}
				mu.Lock()
				defer mu.Unlock()
				ends[p.index] = end
				return nil
			})
		}
		_ = asking.Wait()
		goal.answers <- ends
	})
}

// lower gives goal the answers about the ends.
func (r *Reader) lower(goal *goal, ends map[int]partitionEnd) {
	for partition, end := range goal.lower(ends, r.Positions()) {
		r.unshown[partition] = end
		r.log.Warn("the last entry of a partition brings no message: it counts as read",
			zap.Int("partition", partition), zap.Stringer("entry", end))
	}
	for partition := range ends {
		if goal.waits(partition) {
			r.log.Warn("a partition delivers nothing, and its end is not reached: waiting",
				zap.Int("partition", partition), zap.Stringer("end", goal.left[partition]))
		}
	}
}

// Positions returns, for each partition, the last message that Next returned, or the position
// behind which reading began. A partition without either is missing. A reader with these as
// [ReaderConfig].After continues behind them. [MessageID.Bytes] and [ParseMessageID] store them.
// A position also says where chunks begin whose message is not whole: it may differ from
// [Delivery].ID by ==, not by [MessageID.Compare]. Call it after the messages that Next returned
// are handled.
func (r *Reader) Positions() []record.MessageID {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := make([]record.MessageID, 0, len(r.partitions))
	for _, p := range r.partitions {
		if !p.position.IsZero() {
			ids = append(ids, p.position)
		}
	}
	return ids
}

// Unhealthy returns why a partition is not being read now: its connection is lost, or the
// broker refuses the reader. Reading continues by itself, unless the error is final: then Next
// returns it, too. It is nil when all partitions are read, or are connecting for the first time,
// and after Close. It may be called from any goroutine.
func (r *Reader) Unhealthy() error {
	if err := context.Cause(r.ctx); err != nil {
		if errors.Is(err, record.ErrClosed) {
			return nil
		}
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.partitions {
		if p.unhealthy != nil {
			return fmt.Errorf("messaging: read %s: %w", p.topic, p.unhealthy)
		}
	}
	return nil
}

// all are the partitions.
func (r *Reader) all() []*partition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.partitions))
}

// Close ends the reader: Next returns [ErrClosed]. It waits until ctx ends for the brokers to
// hear of it. Closing again waits likewise.
func (r *Reader) Close(ctx context.Context) error {
	r.end(record.ErrClosed)
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("messaging: close reader: %w", ctx.Err())
	}
}

// end ends the reader. Nothing is started for it any more.
func (r *Reader) end(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stop(cause)
}
