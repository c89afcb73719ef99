package eventbridge

import (
	"context"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
)

// These are about what a process of Eventbridge holds in addition to what its configuration bounds.
const (
	// usualMemory keeps a process below 256 MiB resident, with its program code, as long as its live
	// objects take no more than two thirds of usualMemory.
	usualMemory = 220 << 20
	// memoryBase is for a process without buses: the client, the API, and requests to it.
	memoryBase = 96 << 20
	// memoryOfSubscriber is for the registry, a producer, consumers, and events in flight that no
	// bound in bytes counts.
	memoryOfSubscriber = 1 << 20
	// memoryOfWeight is for a field or an alternative of a pattern, memoryOfEvent for an event in
	// the window of duplicates.
	memoryOfWeight, memoryOfEvent = 100, 100
)

// memoryNeed returns what the bounds let the process hold with the present registry, and a quarter
// more, so that the garbage collector has room when everything is full.
func memoryNeed(cfg Config, now *store.Snapshot) int64 {
	buses, subscribers := now.Counts()
	held := int64(memoryBase) + int64(subscribers)*memoryOfSubscriber
	if cfg.Roles.Has(RolePreprocessor) {
		held += cfg.Ingest.Memory(max(buses, 1))
	}
	if cfg.Roles.Has(RoleEngine) {
		held += int64(max(buses, 1))*cfg.Engine.PrefetchBytes + int64(cfg.Engine.DedupEvents)*memoryOfEvent + int64(now.Weight())*memoryOfWeight
	}
	if cfg.Roles.Has(RoleProcessor) {
		held += cfg.Processor.Memory(subscribers)
	}
	return held + held/4
}

// lookAgain is how often the registry is checked for changes.
const lookAgain = 5 * time.Second

// tuneMemory sets Go's memory limit, and sets it again when the registry has changed. The process
// stays within usualMemory while its live objects take no more than two thirds of that.
func (s *service) tuneMemory() {
	s.rt.SpareMemory(usualMemory)
	now := s.store.Snapshot()
	s.rt.TuneMemory(memoryNeed(s.cfg, now))
	s.rt.Go("memory", func(ctx context.Context) error {
		followMemory(ctx, s.store.Snapshot, now.Revision(), func(now *store.Snapshot) { s.rt.TuneMemory(memoryNeed(s.cfg, now)) })
		return nil
	})
}

// followMemory calls tune when the registry has another revision, until ctx ends.
func followMemory(ctx context.Context, snapshot func() *store.Snapshot, seen int64, tune func(*store.Snapshot)) {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if now := snapshot(); now.Revision() != seen {
				seen = now.Revision()
				tune(now)
			}
		}
	}
}
