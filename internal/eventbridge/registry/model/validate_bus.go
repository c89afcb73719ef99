package model

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

// ValidateBus returns what is wrong with b alone, without looking at what is stored. Partitions may
// be 0.
func ValidateBus(b *Bus, checks Checks) (f FaultList) {
	f.Name("/name", b.Name)
	f.Text("/description", b.Description, maxDescription)
	between(&f, "/partitions", b.Partitions, 0, MaxPartitions)
	f.lasts("/dedup_window", b.DedupWindow, 0, Duration(24*time.Hour))
	between(&f, "/max_event_bytes", b.MaxEventBytes, minEventBytes, MaxEventBytes)
	if len(b.Schemas) > maxSchemas {
		f.Add("/schemas", "must be at most %d, got %d", maxSchemas, len(b.Schemas))
	}
	for _, typ := range slices.Sorted(maps.Keys(b.Schemas)) {
		at := "/schemas" + Step(typ)
		if typ == "" {
			f.Add(at, "the key must be a type of events")
		}
		switch schema := b.Schemas[typ]; {
		case len(schema) == 0 || schema[0] != '{' && string(schema) != "true" && string(schema) != "false":
			f.Add(at, "must be a JSON Schema: an object, true or false")
		case checks.Schema != nil:
			f.below(at, checks.Schema(schema))
		}
	}
	if b.Mapping != nil {
		validateMapping(&f, b.Mapping)
	}
	return f
}

func validateMapping(f *FaultList, m *Mapping) {
	attribute := func(at, text string, needed bool) {
		switch {
		case text == "" && needed:
			f.Add(at, "must be given: a JSON Pointer, or = and a text")
		case text == "":
		case text == "=":
			f.Add(at, "must have a text after =")
		default:
			if _, err := event.ParseExpr(text); err != nil {
				f.Add(at, "%s", err)
			}
		}
		f.Text(at, text, MaxText)
	}
	attribute("/mapping/id", m.ID, false)
	attribute("/mapping/source", m.Source, true)
	attribute("/mapping/type", m.Type, true)
	attribute("/mapping/subject", m.Subject, false)
	attribute("/mapping/time", m.Time, false)
	attribute("/mapping/partitionkey", m.PartitionKey, false)
}
