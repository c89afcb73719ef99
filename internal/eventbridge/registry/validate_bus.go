package registry

import (
	"maps"
	"slices"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
)

const (
	// MaxPartitions bounds a bus' partitions.
	MaxPartitions = 128
	// MaxEventBytes bounds Bus.MaxEventBytes.
	MaxEventBytes = 1 << 20
	minEventBytes = 1 << 10
	maxSchemas    = 100
)

// validateBus returns what is wrong with b in itself. Partitions may be 0.
func validateBus(b *Bus, checks Checks) (f faults) {
	f.name("/name", b.Name)
	f.text("/description", b.Description, maxDescription)
	between(&f, "/partitions", b.Partitions, 0, MaxPartitions)
	f.lasts("/dedup_window", b.DedupWindow, 0, Duration(24*time.Hour))
	between(&f, "/max_event_bytes", b.MaxEventBytes, minEventBytes, MaxEventBytes)
	if len(b.Schemas) > maxSchemas {
		f.add("/schemas", "must be at most %d, got %d", maxSchemas, len(b.Schemas))
	}
	for _, typ := range slices.Sorted(maps.Keys(b.Schemas)) {
		at := "/schemas" + step(typ)
		if typ == "" {
			f.add(at, "the key must be a type of events")
		}
		switch schema := b.Schemas[typ]; {
		case len(schema) == 0 || schema[0] != '{' && string(schema) != "true" && string(schema) != "false":
			f.add(at, "must be a JSON Schema: an object, true or false")
		case checks.Schema != nil:
			f.below(at, checks.Schema(schema))
		}
	}
	if b.Mapping != nil {
		validateMapping(&f, b.Mapping)
	}
	return f
}

func validateMapping(f *faults, m *Mapping) {
	attribute := func(at, text string, needed bool) {
		switch {
		case text == "" && needed:
			f.add(at, "must be given: a JSON Pointer, or = and a text")
		case text == "":
		case text == "=":
			f.add(at, "must have a text behind =")
		default:
			if _, err := event.ParseExpr(text); err != nil {
				f.add(at, "%s", err)
			}
		}
		f.text(at, text, maxText)
	}
	attribute("/mapping/id", m.ID, false)
	attribute("/mapping/source", m.Source, true)
	attribute("/mapping/type", m.Type, true)
	attribute("/mapping/subject", m.Subject, false)
	attribute("/mapping/time", m.Time, false)
	attribute("/mapping/partitionkey", m.PartitionKey, false)
}
