package publish

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Outgoing holds messages of one request, by topic.
type Outgoing struct {
	format.Messages
	parts []topicPart
}

// topicPart is the part of a request that goes to one topic.
type topicPart struct {
	topic    *topic
	from, to int   // range of the records that are encoded and not published
	begun    bool  // a piece was published
	err      error // why no further record is published: the sender must repeat the part

	storedPart     // what is stored of it in the end
	overflowed int // samples of all kinds that go to the overflow topic
}

// Request is a valid request that is to be published.
type Request struct {
	*Claim
	Format   format.Format
	Contents *batch.Contents // Publish counts what cannot be published as invalid instead of valid
	Space    *Workspace      // the series
	Size     int             // of the messages, as Format estimates it
	Out      *Outgoing       // memory for the messages
	Held     *admission.Hold // reserves that memory
	Encoded  func()          // called once Space is not needed any more
}

// Delivered is the outcome of publishing a request.
type Delivered struct {
	Free bool // nothing reads the memory of the messages any more
	// Err is nil if the broker has acknowledged each message, or does not accept it for its size:
	// Contents counts the samples of such messages as invalid. Otherwise it is the error for the
	// sender, who must repeat the request.
	Err    error
	stored storedParts // what must not be published again then
}

// storedParts are the stored parts of an incompletely stored body, by topic. It never changes:
// others may be reading it.
type storedParts map[string]storedPart

type storedPart struct {
	series   seriesSet
	tooLarge batch.Counts // contents of messages that the broker does not accept
}

// without returns the other parts.
func (p storedParts) without(topic string) storedParts {
	others := maps.Clone(p)
	delete(others, topic)
	return others
}

// with returns these and the stored parts of parts.
func (p storedParts) with(parts []topicPart) storedParts {
	all := storedParts{}
	maps.Copy(all, p)
	for i := range parts {
		if part := &parts[i]; part.err == nil {
			all[part.topic.name] = part.storedPart
		}
	}
	return all
}

// Publish encodes the messages of a request, publishes each part to its topic, and waits for the
// acknowledgements. Large requests are encoded and published in pieces, see [format.Messages]. Parts
// that the claim says are already stored are not published. If the topic of a part is not open, the
// other parts are published.
func (t *Topics) Publish(ctx context.Context, r Request) Delivered {
	p := &publication{Topics: t, Request: r}
	groups, err := t.openParts(ctx, r)
	if err == nil {
		err = p.encode(ctx, groups)
	}
	r.Encoded()
	if err != nil {
		t.releaseAll(r.Out)
		return Delivered{Free: true, Err: err, stored: r.stored}
	}
	d := Delivered{Free: p.publishLast(ctx)}
	for _, part := range r.stored {
		r.Contents.RejectTooLarge(part.tooLarge)
	}
	for i := range r.Out.parts {
		part := &r.Out.parts[i]
		r.Contents.RejectTooLarge(part.tooLarge)
		if part.err != nil {
			d.Err = part.err
		}
	}
	if d.Err != nil {
		d.stored = r.stored.with(r.Out.parts)
	}
	r.Out.parts = r.Out.parts[:0]
	return d
}

// publication is a request that is being published.
type publication struct {
	*Topics
	Request
}

// encode encodes the messages of each part, and publishes all pieces but the last.
func (p *publication) encode(ctx context.Context, groups []batch.Extent) error {
	out, space := p.Out, p.Space
	b := &space.Batch
	if err := out.Reserve(p.Held, p.Size, p.Contents.Valid.Entries()); err != nil {
		return err
	}
	var part *topicPart
	out.Publish = func() error {
		part.to = len(out.Records)
		out.NextPiece(p.publishPiece(ctx))
		return part.err
	}
	all := b.Series
	defer func() { b.Series = all }()
	for i := range groups {
		part = &out.parts[i]
		part.from = len(out.Records)
		if part.err == nil {
			b.Series = all[groups[i].From:groups[i].To]
			space.Packing.Partitions = part.topic.sink.partitions()
			if p.Format.Encode(b, &space.Packing, &out.Messages); out.Err != nil && part.err == nil {
				return out.Err // the memory is used up
			}
			out.Err = nil
		}
		part.to = len(out.Records)
	}
	return nil
}

// publishPiece publishes the encoded messages of all parts, and waits for them. It reports whether
// nothing reads their memory any more.
func (p *publication) publishPiece(ctx context.Context) (free bool) {
	return p.eachPart(func(part *topicPart) bool {
		if part.from == part.to {
			return true
		}
		free := p.publishPart(ctx, part)
		part.from, part.to, part.begun = 0, 0, true
		return free
	})
}

// publishLast is publishPiece for the last piece. It releases memory and topics part by part: a slow
// topic must not hold the memory of stored parts, nor prevent another topic that has ended from
// being opened again.
func (p *publication) publishLast(ctx context.Context) (free bool) {
	return p.eachPart(func(part *topicPart) bool {
		free := p.publishPart(ctx, part)
		if free && len(p.Out.parts) > 1 {
			p.Held.Shrink(drop(p.Out.Records[part.from:part.to]))
		}
		p.release(part.topic)
		return free
	})
}

// eachPart calls do for all parts at the same time, and reports whether all calls return true.
func (p *publication) eachPart(do func(*topicPart) bool) bool {
	parts := p.Out.parts
	results := make([]bool, len(parts))
	var wg sync.WaitGroup
	for i := range parts {
		if i+1 < len(parts) {
			wg.Go(func() { results[i] = do(&parts[i]) })
		} else {
			results[i] = do(&parts[i]) // in this goroutine, because most requests have one part
		}
	}
	wg.Wait()
	return !slices.Contains(results, false)
}

// publishPart publishes the encoded messages of a part, and waits for them. It reports whether
// nothing reads their memory any more.
func (p *publication) publishPart(ctx context.Context, part *topicPart) (free bool) {
	records := p.Out.Records[part.from:part.to]
	if part.err != nil || part.begun && len(records) == 0 {
		return true
	}
	deliver := part.topic.sink.publish
	if part.begun { // it goes on also while the topic refuses further requests
		deliver = part.topic.sink.send
	}
	if p.divert != nil {
		deliver = func(ctx context.Context, records []messaging.Record) (bool, error) {
			return p.divert(ctx, part.topic.name, records)
		}
	}
	free, part.err = deliver(ctx, records)
	if tooLarge := (TooLarge)(nil); errors.As(part.err, &tooLarge) {
		part.err = nil
		for _, i := range tooLarge {
			part.tooLarge = part.tooLarge.Plus(p.Out.Counts(part.from + i))
		}
	}
	return free
}

// drop releases records, and returns the bytes that they took.
func drop(records []messaging.Record) (size int64) {
	for i := range records {
		size += int64(len(records[i].Key) + len(records[i].Payload) + format.MessageBytes)
	}
	clear(records)
	return size
}

func (t *Topics) releaseAll(out *Outgoing) {
	for _, part := range out.parts {
		t.release(part.topic)
	}
	out.parts = out.parts[:0]
}

// Divert makes Publish call deliver instead of publishing, for tests of earlier stages. It must be
// called before the first request.
func (t *Topics) Divert(deliver func(ctx context.Context, topic string, records []messaging.Record) (free bool, err error)) {
	t.divert = deliver
}
