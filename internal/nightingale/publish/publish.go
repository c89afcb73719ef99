// Package publish is the publishing stage. [Topics.Publish] handles a request: split.go sorts its
// series by topic and acquires the topics from topics.go, the format encodes the messages, and
// topic_publisher.go publishes them and waits for the acknowledgements. dedup.go recognises repeated
// requests. shared_bytes.go bounds the unacknowledged bytes of all topics together. The package
// imports batch, format and topic, and publishes by pkg/messaging.
package publish

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

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

// Request is a valid request that is to be published.
type Request struct {
	*Claim
	Format   format.Format
	Contents *batch.Contents // Publish counts series that cannot be published as invalid instead of valid
	Space    *Workspace      // the series
	Size     int             // of the messages, as Format estimates it
	Out      *Outgoing       // memory for the messages
	Held     *admission.Hold // reserves that memory
	Encoded  func()          // called once Space is not needed any more
}

// Outgoing holds messages of one request, by topic.
type Outgoing struct {
	format.Messages
	parts []part
}

// part is the part of a request that goes to one topic.
type part struct {
	name       string          // of the topic
	topic      *topicPublisher // nil: an earlier attempt at the same body has stored the part
	from, to   int             // range of the records that are encoded and not published
	begun      bool            // a piece was published
	err        error           // why no further record is published: the sender must repeat the part
	overflowed int             // samples of all kinds that go to the overflow topic
	storedPart                 // its stored series and its samples that the broker does not accept
}

// Delivered is the outcome of publishing a request.
type Delivered struct {
	Free bool // nothing reads the memory of the messages any more
	// Err is nil if the broker has acknowledged each message, or does not accept it for its size:
	// Contents counts the samples of such messages as invalid. Otherwise it is the error for the
	// sender, who must repeat the request.
	Err error
}

// publication is a request that is being published.
type publication struct {
	*Topics
	Request

	byTopic map[string]int // part of each topic, or why it has none
	last    int            // part of the last series, often that of the next one, too; -1: none
	full    bool           // max_topics is reached: close no topic for another one
}

// Publish encodes the messages of a request, publishes each part to its topic, and waits for the
// acknowledgements. Large requests are encoded and published in pieces, see [format.Messages]. Parts
// that an earlier attempt has stored are not published. If the topic of a part is not open, the
// other parts are published.
func (t *Topics) Publish(ctx context.Context, r Request) Delivered {
	p := &publication{Topics: t, Request: r}
	extents, err := p.split(ctx)
	if err == nil {
		err = p.encode(ctx, extents)
	}
	r.Encoded()
	if err != nil {
		p.releaseAll()
		return Delivered{Free: true, Err: err}
	}
	d := Delivered{Free: p.publishParts(ctx, true)}
	for i := range r.Out.parts {
		part := &r.Out.parts[i]
		r.Contents.RejectTooLarge(part.tooLarge)
		if part.err != nil {
			d.Err = part.err
		}
	}
	for _, part := range r.Out.parts {
		if d.Err != nil && part.err == nil { // the next attempt at this body must not publish the part again
			if r.stored == nil {
				r.stored = make(map[string]storedPart)
			}
			r.stored[part.name] = part.storedPart
		}
	}
	r.Out.parts = r.Out.parts[:0]
	return d
}

// encode encodes the messages of each part, and publishes all pieces but the last.
func (p *publication) encode(ctx context.Context, extents []batch.Extent) error {
	out, space := p.Out, p.Space
	b := &space.Batch
	if err := out.Reserve(p.Held, p.Size, p.Contents.Valid.Entries()); err != nil {
		return err
	}
	var part *part
	out.Publish = func() error {
		part.to = len(out.Records)
		out.NextPiece(p.publishParts(ctx, false))
		return part.err
	}
	all := b.Series
	defer func() { b.Series = all }()
	for i := range extents {
		part = &out.parts[i]
		part.from = len(out.Records)
		if part.topic != nil && part.err == nil {
			b.Series = batch.Slice(all, extents[i])
			space.Packing.Partitions = part.topic.publisher.Partitions()
			if p.Format.Encode(b, &space.Packing, &out.Messages); out.Err != nil && part.err == nil {
				return out.Err // the memory is used up
			}
			out.Err = nil
		}
		part.to = len(out.Records)
	}
	return nil
}

// publishParts publishes the encoded messages of all parts at the same time, and waits for them. It
// reports whether nothing reads their memory any more.
func (p *publication) publishParts(ctx context.Context, last bool) (free bool) {
	var inUse atomic.Bool
	publish := func(part *part) {
		if !p.publishPart(ctx, part, last) {
			inUse.Store(true)
		}
	}
	parts := p.Out.parts
	var wg sync.WaitGroup
	for i := range parts {
		if i+1 < len(parts) {
			wg.Go(func() { publish(&parts[i]) })
		} else {
			publish(&parts[i]) // in this goroutine, because most requests have one part
		}
	}
	wg.Wait()
	return !inUse.Load()
}

// publishPart publishes the encoded messages of a part, and waits for them. It reports whether
// nothing reads their memory any more. After the last piece it releases that memory and the topic: a
// slow topic must not hold the memory of stored parts, nor prevent another topic that has ended from
// being opened again.
func (p *publication) publishPart(ctx context.Context, part *part, last bool) (free bool) {
	if part.topic == nil {
		return true
	}
	free = true
	records := p.Out.Records[part.from:part.to]
	if part.err == nil && (len(records) > 0 || last && !part.begun) {
		switch {
		case p.divert != nil:
			free, part.err = p.divert(ctx, part.name, records)
		case part.begun: // the topic may refuse requests by now, but not the rest of this one
			free, part.err = part.topic.send(ctx, records)
		default:
			free, part.err = part.topic.publish(ctx, records)
		}
		part.begun = true
	}
	if tooLarge := (TooLarge)(nil); errors.As(part.err, &tooLarge) {
		part.err = nil
		for _, i := range tooLarge {
			part.tooLarge.Add(p.Out.Counts(part.from + i))
		}
	}
	if !last {
		part.from, part.to = 0, 0
		return free
	}
	if free && len(p.Out.parts) > 1 {
		p.Held.Shrink(clearRecords(records))
	}
	p.release(part.topic)
	return free
}

// clearRecords releases records, and returns the bytes that they took.
func clearRecords(records []messaging.Record) (size int64) {
	for i := range records {
		size += int64(len(records[i].Key) + len(records[i].Payload) + format.MessageBytes)
	}
	clear(records)
	return size
}

// releaseAll releases the topics of all parts, and removes the parts.
func (p *publication) releaseAll() {
	for _, part := range p.Out.parts {
		if part.topic != nil {
			p.release(part.topic)
		}
	}
	p.Out.parts = p.Out.parts[:0]
}

type deliverer = func(ctx context.Context, topic string, records []messaging.Record) (free bool, err error)

// Divert makes Publish call deliver instead of publishing, for tests of earlier stages. It must be
// called before the first request.
func (t *Topics) Divert(deliver deliverer) { t.divert = deliver }
