package pigeonhole

import (
	"context"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/pigeonhole/transform"
	"github.com/aviaryhq/aviary/internal/truncate"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// route is a running route, with its own connections, memory bounds and errors. This file is the
// path of a message: the source offers it to a pipeline. The pipeline calls prepare (loops, hops,
// transformation, messages that are already stored) and gives the message to the sink. A refused
// message goes to storeDeadLetter. lifecycle.go starts and stops routes.
type route struct {
	cfg            RouteConfig
	log            *zap.Logger
	transform      *transform.Transform
	pipelines      *pipeline.Set
	source         connector.Source
	sink           connector.Sink
	deadLetterSink connector.Sink          // may be sink; nil: a refused message stops the route
	resumableSink  connector.ResumableSink // nil: messages that come again are stored again

	cancel context.CancelFunc
	done   chan struct{}
	// These end when the source, and the sinks, must not wait any longer for messages in flight.
	sourceLimit, sinkLimit       context.Context
	endSourceLimit, endSinkLimit context.CancelFunc

	mu                    sync.Mutex
	phase                 phase
	phaseSince, lastErrAt time.Time
	lastErr               error
	health                map[string]*health.State // by part
	lag                   int64                    // -1 when not known
}

const (
	roleSource, roleSink, roleDeadLetter = "source", "sink", "dead_letter" // of a route's parts

	commitEvery            = 100 * time.Millisecond                   // how often pipelines commit their watermark at the source
	minBackoff, maxBackoff = 100 * time.Millisecond, 10 * time.Second // before failed messages are sent again
)

// newRoute makes a route; start runs it.
func newRoute(cfg Config, rc RouteConfig, changes *transform.Transform, log *zap.Logger, m *metrics) *route {
	r := &route{
		cfg: rc, log: log.Named("route").With(zap.String("route", rc.Name)), transform: changes, done: make(chan struct{}),
		phase: running, phaseSince: time.Now(), health: map[string]*health.State{}, lag: -1,
	}
	r.sourceLimit, r.endSourceLimit = context.WithCancel(context.Background())
	r.sinkLimit, r.endSinkLimit = context.WithCancel(context.Background())
	system, source := only(rc.Source)
	r.source = source.NewSource(r.options(r.sourceLimit, roleSource, "source."+system, m))
	system, sink := rc.sink()
	r.sink = sink.NewSink(r.options(r.sinkLimit, roleSink, "sink."+system, m))
	if rc.DeadLetter.To != "" {
		r.deadLetterSink = r.sink
	}
	if system, deadLetters := rc.deadLetterSink(); deadLetters != nil {
		r.deadLetterSink = deadLetters.NewSink(r.options(r.sinkLimit, roleDeadLetter, "dead_letter.sink."+system, m))
	}
	if rc.Guarantee == EffectivelyOnce {
		r.resumableSink, _ = r.sink.(connector.ResumableSink)
	}
	r.pipelines = r.newPipelines(cfg.bounds(rc), m)
	return r
}

// options returns the options of a source or sink. part is its name in logs and on /routes.
func (r *route) options(limit context.Context, role, part string, m *metrics) connector.Options {
	return connector.Options{
		Log: r.log.Named(part), Report: func(err error) { r.report(part, err) }, Metrics: m.parts.Part(r.cfg.Name, role),
		Registerer: m.reg, DrainContext: limit,
	}
}

func (r *route) newPipelines(bounds InFlight, m *metrics) *pipeline.Set {
	way := pipeline.Route{
		Sink: r.sink, Prepare: r.newPrepare, Stop: r.fail, Log: r.log, Metrics: m.pipelines.Route(r.cfg.Name),
		Report:            func(err error) { r.report("sending", err) },
		ReportDeadLetters: func(err error) { r.report("dead letters", err) },
	}
	if r.deadLetterSink != nil {
		way.DeadLetter = r.storeDeadLetter
	}
	return pipeline.NewSet(pipeline.Config{
		Messages: bounds.Messages, Bytes: int64(bounds.Bytes), CommitEvery: commitEvery, MinBackoff: minBackoff, MaxBackoff: maxBackoff,
	}, way)
}

// maxHops is how many routes may send a message. It ends a loop that hops do not show, such as one
// through an exchange, whose queues are unknown.
const maxHops = 8

// preparer prepares the messages of one pipeline. It caches names, which seldom change.
type preparer struct {
	*route
	lastTopic, lastHop string // the last message's topic, and its name among the hops
	lastTo, lastPlace  string // the last destination, and its name among the hops

	mu        sync.Mutex       // release may be called while a message waits for resume
	stored    map[string]int64 // by destination: the last offset that it has stored
	partition int32            // a pipeline has one
}

// newPrepare returns the function prepare of one pipeline, and one to call when it is closed.
func (r *route) newPrepare() (prepare pipeline.Prepare, closed func()) {
	p := &preparer{route: r, stored: map[string]int64{}}
	if r.resumableSink == nil {
		return p.prepare, nil
	}
	return p.prepare, p.release
}

// prepare changes m and returns its destination. keep is false for a message to drop.
//
// A message carries the topics and queues from which routes have taken it, its hops. One that would
// return to one of them is dropped. So topics can be replicated both ways, and routes can follow
// each other.
func (p *preparer) prepare(ctx context.Context, m *message.Message) (to string, keep bool, err error) {
	// First: a loop is dropped even at maxHops, and even if an expression fails on it.
	to, fixed := p.transform.Destination()
	if fixed && p.loops(m, to) {
		return "", false, pipeline.ErrLoop
	}
	if err := m.CheckHops(maxHops); err != nil {
		return "", false, pipeline.Refuse("hops", err)
	}
	if to, keep, err = p.transform.Apply(m); err != nil || !keep {
		return "", false, err
	}
	if !fixed && p.loops(m, to) {
		return "", false, pipeline.ErrLoop
	}
	if p.lastHop == "" || p.lastTopic != m.From.Topic {
		p.lastTopic, p.lastHop = m.From.Topic, message.PlaceName(m.From.System, m.From.Cluster, m.From.Topic)
	}
	m.Hop, m.OmitOrigin = p.lastHop, p.cfg.Provenance == provenanceHops
	if p.resumableSink == nil {
		return to, true, nil
	}
	stored, err := p.isStored(ctx, to, m)
	return to, !stored, err
}

// loops reports whether m has been at the destination to.
func (p *preparer) loops(m *message.Message, to string) bool {
	if len(m.Hops) == 0 {
		return false
	}
	if p.lastPlace == "" || p.lastTo != to {
		p.lastTo, p.lastPlace = to, p.sink.PlaceName(to)
	}
	return m.HasPassed(p.lastPlace)
}

// isStored reports whether the destination has m already. The source's position is committed after
// the sink has stored, so after a restart or a rebalance the first messages come again. Offsets of
// a pipeline ascend, and the sink stores in order: every message up to the last one is stored.
func (p *preparer) isStored(ctx context.Context, to string, m *message.Message) (bool, error) {
	p.mu.Lock()
	last, known := p.stored[to]
	p.partition = m.From.Partition
	p.mu.Unlock()
	if !known {
		var err error
		if last, err = p.resume(ctx, to, &m.From); err != nil {
			return false, err
		}
		p.mu.Lock()
		p.stored[to] = last
		p.mu.Unlock()
	}
	return m.From.Offset <= last && !p.resumableSink.Oversized(m), nil
}

// resume asks the sink for the last stored offset, until it answers or ctx ends; -1 is none.
func (p *preparer) resume(ctx context.Context, to string, from *message.From) (int64, error) {
	const part = "resuming"
	wait := backoff.Backoff{Min: minBackoff, Max: maxBackoff}
	for {
		offset, ok, err := p.resumableSink.Resume(ctx, to, from)
		_, final := pipeline.Refused(err)
		switch {
		case err != nil && ctx.Err() != nil:
		case err == nil || final:
			p.report(part, nil)
			if !ok {
				offset = -1
			}
			return offset, err
		default:
			p.report(part, err)
		}
		if !wait.Wait(ctx) {
			p.report(part, pipeline.ErrClosed) // another failing pipeline reports its error again
			return 0, ctx.Err()
		}
	}
}

func (p *preparer) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for to := range p.stored {
		p.resumableSink.Release(to, p.partition)
	}
}

// Headers of dead letters.
const (
	deadLetterReason  = "dead-letter-reason"  // a short word, see pipeline.Refuse
	deadLetterError   = "dead-letter-error"   // the error as text
	deadLetterRoute   = "dead-letter-route"   // the route's name
	deadLetterTo      = "dead-letter-to"      // the message's destination
	deadLetterOmitted = "dead-letter-omitted" // the sizes of value and key and the number of headers, in a dead letter without them
	maxDeadLetterText = 1 << 10
)

// storeDeadLetter stores a refused message as a dead letter, with the reason and the origin. If that
// is refused, too (being too large, for example), and the source keeps the message, it stores a
// stub without key, value and headers: the origin says where to find the message.
func (r *route) storeDeadLetter(ctx context.Context, to string, m *message.Message, reason error, done func(error)) {
	reasonHeaders := []message.Header{
		{Name: deadLetterReason, Value: []byte(pipeline.Reason(reason))},
		{Name: deadLetterError, Value: []byte(truncate.Text(reason.Error(), maxDeadLetterText))},
		{Name: deadLetterRoute, Value: []byte(r.cfg.Name)},
		{Name: deadLetterTo, Value: []byte(truncate.Text(to, maxDeadLetterText))},
	}
	deadLetter := *m
	deadLetter.OmitOrigin = false
	// Its hop is the dead-letter topic, not the source's topic: it may be put back there.
	deadLetter.Hop = r.deadLetterSink.PlaceName(r.cfg.DeadLetter.To)
	deadLetter.Headers = append(append([]message.Header(nil), m.Headers...), reasonHeaders...)
	r.deadLetterSink.Send(ctx, r.cfg.DeadLetter.To, &deadLetter, func(err error) {
		// A source whose messages have offsets keeps them after they are acknowledged.
		if _, refused := pipeline.Refused(err); !refused || m.From.Offset < 0 {
			done(err)
			return
		}
		stub := deadLetter
		stub.Key, stub.Value, stub.AMQP = nil, []byte{}, nil
		sizes := "value=" + strconv.Itoa(len(m.Value)) + " key=" + strconv.Itoa(len(m.Key)) + " headers=" + strconv.Itoa(len(m.Headers))
		stub.Headers = append(reasonHeaders, message.Header{Name: deadLetterOmitted, Value: []byte(sizes)})
		// In another goroutine: this callback must not block.
		go r.deadLetterSink.Send(ctx, r.cfg.DeadLetter.To, &stub, done)
	})
}
