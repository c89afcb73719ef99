package eventbridge

import (
	"context"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
)

// What a process of Eventbridge holds, roughly, besides what its configuration bounds.
const (
	// usualMemory is such that a process with all roles, 1,000 subscribers and 10,000 rules stays below 512 MiB resident, with its program code.
	usualMemory = 440 << 20
	// memoryBase is for what is there without buses: the client, the API, what requests to it take.
	memoryBase = 96 << 20
	// memoryOfSubscriber is for the registry, a producer, consumers, and what is under way that no bound in bytes counts.
	memoryOfSubscriber = 1 << 20
	// memoryOfWeight is for a field or an alternative of a pattern, memoryOfEvent for an event in the window of duplicates.
	memoryOfWeight, memoryOfEvent = 100, 100
)

// memoryNeed is what the bounds let the process hold with what the registry has: a quarter more, so that the garbage collector has room when all is full.
func memoryNeed(cfg Config, now *registry.Snapshot) int64 {
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

// lookAgain is how often the registry is asked whether there is more to hold.
const lookAgain = 5 * time.Second

// tuneMemory sets Go's memory limit, and again when the registry has changed. The process stays within usualMemory while two thirds of that suffice for what is alive.
func (s *service) tuneMemory() {
	s.rt.SpareMemory(usualMemory)
	now := s.store.Snapshot()
	s.rt.TuneMemory(memoryNeed(s.cfg, now))
	s.rt.Go("memory", func(ctx context.Context) error {
		followMemory(ctx, s.store.Snapshot, now.Revision(), func(now *registry.Snapshot) { s.rt.TuneMemory(memoryNeed(s.cfg, now)) })
		return nil
	})
}

// followMemory calls tune when the registry has another revision, until ctx ends.
func followMemory(ctx context.Context, snapshot func() *registry.Snapshot, seen int64, tune func(*registry.Snapshot)) {
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
