package ingest

import (
	"fmt"
	"sync"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/schema"
)

// definition is the compiled definition of a bus: its schemas and its mapping.
type definition struct {
	bus  *model.Bus
	once sync.Once

	schemas map[string]*schema.Schema
	mapping *event.Mapping
	err     error
}

// ready compiles the definition, once.
func (d *definition) ready() error {
	d.once.Do(func() {
		d.schemas = make(map[string]*schema.Schema, len(d.bus.Schemas))
		for kind, text := range d.bus.Schemas {
			if d.schemas[kind], d.err = schema.Compile(text); d.err != nil {
				d.err = fmt.Errorf("the bus' schema of %q: %w", kind, d.err)
				return
			}
		}
		if d.bus.Mapping != nil {
			d.mapping, d.err = mappingOf(d.bus.Mapping)
		}
	})
	return d.err
}

func mappingOf(m *model.Mapping) (*event.Mapping, error) {
	made := new(event.Mapping)
	for _, field := range [...]struct {
		name, text string
		to         *event.Expr
	}{
		{"id", m.ID, &made.ID}, {"source", m.Source, &made.Source}, {"type", m.Type, &made.Type}, {"subject", m.Subject, &made.Subject},
		{"time", m.Time, &made.Time}, {"partitionkey", m.PartitionKey, &made.PartitionKey},
	} {
		var err error
		if *field.to, err = event.ParseExpr(field.text); err != nil {
			return nil, fmt.Errorf("the bus' mapping of %s: %w", field.name, err)
		}
	}
	return made, nil
}

// definitions keeps the definitions of buses, each until the bus changes.
type definitions struct{ known sync.Map } // *definition by the bus' name

func (d *definitions) of(bus *model.Bus) *definition {
	if v, known := d.known.Load(bus.Name); known {
		if ready, ok := v.(*definition); ok && ready.bus.Revision == bus.Revision {
			return ready
		}
	}
	fresh := &definition{bus: bus}
	d.known.Store(bus.Name, fresh)
	return fresh
}

// sweep removes deleted buses.
func (d *definitions) sweep(now *store.Snapshot) {
	d.known.Range(func(name, _ any) bool {
		if text, ok := name.(string); ok && now.Bus(text) == nil {
			d.known.Delete(name)
		}
		return true
	})
}
