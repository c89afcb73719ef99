package ingest

import (
	"fmt"
	"sync"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/schema"
)

// busState is a bus with its topic, and with its schemas and mapping, which are compiled once.
type busState struct {
	bus      *model.Bus
	topic    *busTopic
	compiled sync.Once
	schemas  map[string]*schema.Schema // by the type of events
	mapping  event.Mapping
	err      error // why they cannot be compiled
}

func (b *busState) compile() {
	b.schemas = make(map[string]*schema.Schema, len(b.bus.Schemas))
	for kind, text := range b.bus.Schemas {
		if b.schemas[kind], b.err = schema.Compile(text); b.err != nil {
			b.err = fmt.Errorf("the bus' schema of %q: %w", kind, b.err)
			return
		}
	}
	from, to := b.bus.Mapping, &b.mapping
	if from == nil {
		return
	}
	for _, field := range [...]struct {
		to   *event.Expr
		text string
	}{
		{&to.ID, from.ID}, {&to.Source, from.Source}, {&to.Type, from.Type},
		{&to.Subject, from.Subject}, {&to.Time, from.Time}, {&to.PartitionKey, from.PartitionKey},
	} {
		if *field.to, b.err = event.ParseExpr(field.text); b.err != nil {
			b.err = fmt.Errorf("the bus' mapping %q: %w", field.text, b.err)
			return
		}
	}
}

// of returns the state of a bus.
func (o *busTable) of(bus *model.Bus) *busState {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.known[bus.Name]
	switch {
	case b == nil:
		b = &busState{bus: bus, topic: o.newTopic(bus)}
	case !b.topic.isOf(bus):
		b.topic.stop()
		b = &busState{bus: bus, topic: o.newTopic(bus)}
	case b.bus.Revision != bus.Revision:
		b = &busState{bus: bus, topic: b.topic}
	}
	o.known[bus.Name] = b
	return b
}

// sweep removes deleted buses, and closes their topics.
func (o *busTable) sweep(now *store.Snapshot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, b := range o.known {
		if !b.topic.isOf(now.Bus(name)) {
			b.topic.stop()
			delete(o.known, name)
		}
	}
}
