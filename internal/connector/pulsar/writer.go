package pulsar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/ring"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// minWriterPause and maxWriterPause bound the pauses between attempts that store nothing.
const (
	minWriterPause = 50 * time.Millisecond
	maxWriterPause = 2 * time.Second
)

// writer writes one partition of one topic. Pipelines add messages; its goroutine (run) stores them.
type writer struct {
	sink   *Sink
	key    exactKey
	source sourceTopic
	users  usage
	log    *zap.Logger

	ctx     context.Context // ends when the writer is to store its pending messages and close
	cancel  context.CancelFunc
	killCtx context.Context // ends when the writer is to close at once
	kill    context.CancelFunc
	ended   chan struct{}
	wake    chan struct{} // for run: pending is not empty

	mu           sync.Mutex
	phase        phase
	changed      chan struct{} // closed and replaced when phase changes
	refusal      error         // with phaseRefusing and phaseEnded
	openError    error         // while opening
	pub          *messaging.EntryWriter
	stored       int64                    // the highest offset known to be stored, or refused; -1 for none
	highestTaken int64                    // the highest offset that was accepted, at least stored
	pending      ring.Ring[*exactMessage] // accepted and not known to be stored, in order

	// Only run uses what follows.
	maxRecords int                 // of an entry: lower after an error, then doubled with each stored entry
	records    []*messaging.Record // of the next entry
}

type phase int

const (
	phaseOpening  phase = iota // it is not known which offsets are stored
	phaseOpen                  // the writer is the partition's only producer
	phaseRefusing              // the topic takes no message of this partition
	phaseEnded
)

// exactMessage is one message until it is stored.
type exactMessage struct {
	record messaging.Record
	offset int64
	done   func(error)
}

// send accepts m, or completes it at once when its outcome is known. The writer counts a user until
// it calls done.
func (w *writer) send(m *message.Message, done func(error)) {
	if known, err := w.accept(m, done); known {
		w.users.release()
		done(err)
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// accept adds m to pending, unless its outcome is known.
func (w *writer) accept(m *message.Message, done func(error)) (known bool, outcome error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	offset := m.From.Offset
	switch {
	case w.phase == phaseRefusing || w.phase == phaseEnded:
		return true, w.refusal
	case w.source != sourceOf(&m.From):
		return true, w.otherSourceError(sourceOf(&m.From))
	case offset <= w.stored:
		return true, nil
	case offset <= w.highestTaken:
		return w.addWaiter(offset, done)
	}
	w.highestTaken = offset
	e := &exactMessage{record: recordOf(m), offset: offset, done: done}
	e.record.SequenceID = &e.offset
	w.pending.Push(e)
	return false, nil
}

// addWaiter has done called with the outcome of a pending offset, which a pipeline that has been closed
// since has sent. w.mu is held.
func (w *writer) addWaiter(offset int64, done func(error)) (known bool, outcome error) {
	i := w.pendingAfter(offset - 1)
	if i == w.pending.Len() || (*w.pending.At(i)).offset != offset {
		return true, pipeline.Refuse("out_of_order", fmt.Errorf("offset %d arrived after offset %d", offset, w.highestTaken))
	}
	e := *w.pending.At(i)
	before := e.done
	e.done = func(err error) {
		before(err)
		w.users.release()
		done(err)
	}
	return false, nil
}

// pendingAfter returns the index of the first pending message after offset. w.mu is held.
func (w *writer) pendingAfter(offset int64) int {
	return sort.Search(w.pending.Len(), func(i int) bool { return (*w.pending.At(i)).offset > offset })
}

// run stores what is pending until the writer is closed.
func (w *writer) run() {
	defer close(w.ended)
	defer w.kill()
	defer w.completeAll(phaseEnded, errStopped)
	wait := backoff.Backoff{Min: minWriterPause, Max: maxWriterPause}
	for w.ctx.Err() == nil {
		pub, err := w.open()
		if err == nil {
			opened := pub.Stored()
			w.write(pub)
			w.closeProducer(pub)
			if pub.Stored() > opened {
				wait.Reset()
				continue
			}
		} else if _, final := pipeline.Refused(err); final {
			// The topic accepts no message of this partition.
			w.completeAll(phaseRefusing, err)
			<-w.ctx.Done()
			return
		} else {
			w.setOpenError(err)
		}
		wait.Wait(w.ctx) // nothing was stored: each attempt can end a shared connection
	}
}

// open opens the EntryWriter, which finds out which offsets are stored.
func (w *writer) open() (*messaging.EntryWriter, error) {
	topic, err := w.topic()
	if err != nil {
		return nil, err
	}
	// EntryWriter waits as long as another producer has the partition. late only reports that.
	late := time.AfterFunc(openTimeout, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.phase == phaseOpening && w.pub == nil {
			w.openError = fmt.Errorf("%s is not open for writing yet: another producer has it, or its broker does not answer", topic)
		}
	})
	pub, err := w.sink.client.EntryWriter(w.ctx, topic, w.config())
	late.Stop()
	if errors.Is(err, messaging.ErrTopicTerminated) {
		return nil, pipeline.Refuse("terminated", err)
	}
	if err != nil {
		return nil, err
	}
	w.advance(pub.Stored())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pub, w.openError = pub, nil
	w.setPhase(phaseOpen)
	return pub, nil
}

// config is the EntryWriter's configuration. Brokers deduplicate by producer name and sequence id,
// which is the offset, so each source topic has its own producer name.
func (w *writer) config() messaging.EntryWriterConfig {
	p := w.sink.cfg.Profile
	name := cmp.Or(p.ProducerName, "pigeonhole") + "-" + w.source.topic
	if w.source.id != "" {
		name += "-" + w.source.id
	}
	return messaging.EntryWriterConfig{
		Name: name, Position: w.position,
		Label: p.Name, Compression: p.Compression, MaxRecords: p.BatchRecords, AckTimeout: p.AckTimeout,
	}
}

const oneSource = "effectively_once allows one source topic per partition"

// position is the source offset of a message that is stored in the partition; -1 if it has none that
// counts.
func (w *writer) position(d *messaging.Delivery) (int64, error) {
	at, ok := message.Place(d.Properties)
	if !ok || at.Offset < 0 {
		w.log.Warn("last message was not written by Pigeonhole; resuming from broker deduplication only",
			zap.Stringer("message_id", d.ID))
		return -1, nil
	}
	holds := sourceTopic{at.System, at.Cluster, at.Topic, at.ID}
	switch {
	case at.ID != "" && slices.Contains(w.sink.cfg.FormerSources, at.ID) && at.ID != w.source.id:
		w.log.Info("continuing after the messages of a former source topic",
			zap.Stringer("holds", holds), zap.Stringer("source", w.source))
		return -1, nil
	case at.Partition != w.key.partition:
		return 0, pipeline.Refuse("other_source", fmt.Errorf("partition %d of %s holds messages of partition %d of %s",
			w.key.partition, w.key.topic, at.Partition, at.Topic))
	case !w.source.same(holds):
		text := "partition %d of %s holds messages of %s and cannot store messages of %s: " + oneSource
		if holds.id != "" && w.source.id != "" {
			text += "; to continue after them, list the former id in former_sources"
		}
		return 0, pipeline.Refuse("other_source", fmt.Errorf(text, w.key.partition, w.key.topic, holds, w.source))
	default:
		return at.Offset, nil
	}
}

// otherSourceError is the outcome of another topic's messages while the writer is open. Those of a
// topic that was created again wait until the writer has stored the former topic's.
func (w *writer) otherSourceError(other sourceTopic) error {
	if w.source.topic == other.topic {
		return fmt.Errorf("partition %d of %s still stores messages of %s; messages of %s wait",
			w.key.partition, w.key.topic, w.source, other)
	}
	return pipeline.Refuse("other_source", fmt.Errorf(
		"partition %d of %s stores messages of %s and cannot store messages of %s: "+oneSource,
		w.key.partition, w.key.topic, w.source, other))
}

// topic is the name of the topic that is the partition.
func (w *writer) topic() (string, error) {
	asking, cancel := context.WithTimeout(w.ctx, openTimeout)
	defer cancel()
	topics, err := w.sink.client.Partitions(asking, w.key.topic)
	if err != nil {
		return "", err
	}
	if int(w.key.partition) >= len(topics) {
		return "", pipeline.Refuse("no_partition", fmt.Errorf("%s has %d partitions, the message comes from partition %d",
			w.key.topic, len(topics), w.key.partition))
	}
	return topics[w.key.partition], nil
}

// advance completes every pending message up to offset: they are stored.
func (w *writer) advance(offset int64) {
	w.mu.Lock()
	stored := w.takeFirst(w.pendingAfter(offset))
	w.stored = max(w.stored, offset)
	w.highestTaken = max(w.highestTaken, offset)
	w.mu.Unlock()
	w.complete(stored, nil)
}

// write stores the pending messages, entry after entry. It returns when it is not known whether an
// entry was stored, when the brokers take less than max_message_bytes, or when the writer closes.
func (w *writer) write(pub *messaging.EntryWriter) {
	for w.collectEntry() {
		err := pub.Store(w.killCtx, w.records...)
		w.advance(pub.Stored())
		switch {
		case err == nil:
			w.maxRecords = min(2*w.maxRecords, w.sink.cfg.Profile.BatchRecords)
		case errors.Is(err, messaging.ErrInDoubt) || !errors.Is(err, messaging.ErrTooLarge):
			w.maxRecords = max(len(w.records)/2, 1)
			w.log.Info("the outcome of an entry is unknown; reading the last stored message again", zap.Error(err))
			return
		case len(w.records) == 1:
			// It is not Oversized, and would be lost as a dead letter: a later process takes all before
			// the last stored message for stored.
			w.setOpenError(fmt.Errorf("%s: max_message_bytes is more than the brokers' maxMessageSize: lower it (%w)", w.key.topic, err))
			return
		default: // the messages are too large together
			w.maxRecords = max(len(w.records)/2, 1)
		}
	}
}

// collectEntry sets w.records to the next pending messages, and waits for some. It returns false when
// the writer closes and none is left.
func (w *writer) collectEntry() bool {
	for {
		w.mu.Lock()
		clear(w.records) // stored payloads are not kept while nothing comes
		w.records = w.records[:0]
		for bytes := 0; len(w.records) < min(w.pending.Len(), w.maxRecords); {
			r := &(*w.pending.At(len(w.records))).record
			bytes += messaging.EntryBytes(r)
			if len(w.records) > 0 && bytes > messaging.MaxEntryBytes {
				break
			}
			w.records = append(w.records, r)
		}
		w.mu.Unlock()
		if len(w.records) > 0 {
			return true
		}
		if w.ctx.Err() != nil {
			return false
		}
		select {
		case <-w.wake:
		case <-w.ctx.Done():
		}
	}
}

// closeProducer closes the EntryWriter: afterwards it cannot send the entry any more.
func (w *writer) closeProducer(pub *messaging.EntryWriter) {
	w.mu.Lock()
	w.pub = nil
	w.setPhase(phaseOpening)
	w.mu.Unlock()
	closing, cancel := context.WithTimeout(w.killCtx, w.sink.cfg.CloseTimeout)
	defer cancel()
	if err := pub.Close(closing); err != nil {
		w.log.Warn("cannot close a producer cleanly", zap.Error(err))
	}
}

// close waits until ctx ends for pending messages to be stored. The rest fails.
func (w *writer) close(ctx context.Context) {
	w.cancel()
	select {
	case <-w.ended:
	case <-ctx.Done():
		w.kill()
		<-w.ended
	}
}

// takeFirst removes the first n pending messages, and returns their done functions. w.mu is held.
func (w *writer) takeFirst(n int) []func(error) {
	taken := make([]func(error), n)
	for i := range taken {
		e := w.pending.Pop()
		taken[i], w.stored = e.done, e.offset
	}
	return taken
}

// completeAll changes the phase and completes all pending messages, which are not stored, with err.
func (w *writer) completeAll(p phase, err error) {
	w.mu.Lock()
	w.refusal = err
	w.setPhase(p)
	stored := w.stored
	taken := w.takeFirst(w.pending.Len())
	w.stored, w.highestTaken = stored, stored
	w.mu.Unlock()
	w.complete(taken, err)
}

// complete calls the done functions with err.
func (w *writer) complete(waiting []func(error), err error) {
	for _, done := range waiting {
		w.users.release()
		done(err)
	}
}

// setPhase changes the phase and wakes Resume. w.mu is held.
func (w *writer) setPhase(p phase) {
	w.phase = p
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *writer) setOpenError(err error) {
	w.mu.Lock()
	w.openError = err
	w.mu.Unlock()
}

func (w *writer) healthError() error {
	w.mu.Lock()
	err, pub := w.openError, w.pub
	w.mu.Unlock()
	if err != nil || pub == nil {
		return err
	}
	if err := pub.Unhealthy(); !errors.Is(err, messaging.ErrProducerLost) {
		return err
	}
	return nil // run opens it again
}
