package eventbridge

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
)

// registryOf has subscribers of one bus, each with ten rules.
func registryOf(t *testing.T, revision int64, subscribers int) *store.Snapshot {
	t.Helper()
	all := make([]model.Subscriber, subscribers)
	for i := range all {
		all[i] = model.Subscriber{Bus: "orders", Name: fmt.Sprint("s", i), State: model.Active, Target: model.Target{Log: &model.LogTarget{}}}
		all[i].Delivery.Retry.MaxAttempts = 16
		for rule := range 10 {
			all[i].Rules = append(all[i].Rules, model.Rule{Name: fmt.Sprint("r", rule), Pattern: []byte(`{"type":["a"]}`)})
		}
	}
	return storetest.Snapshot(t, revision, []model.Bus{{Name: "orders"}}, all)
}

// TestMemoryNeed: it is never below what is usual with a thousand subscribers, and grows with what
// the registry has and with the roles.
func TestMemoryNeed(t *testing.T) {
	cfg := DefaultConfig()
	few, many := registryOf(t, 1, 1), registryOf(t, 2, 1000)
	assert.Greater(t, memoryNeed(cfg, few), int64(300<<20))
	assert.Less(t, memoryNeed(cfg, few), int64(600<<20))
	assert.Greater(t, memoryNeed(cfg, many), int64(usualMemory)+memoryNeed(cfg, few))
	for _, role := range cfg.Roles {
		alone := cfg
		alone.Roles = Roles{role}
		assert.Less(t, memoryNeed(alone, many), memoryNeed(cfg, many), role)
		assert.Greater(t, memoryNeed(alone, many), int64(1000*memoryOfSubscriber), role)
	}
}

// TestMemoryFollowsTheRegistry: the limit is set again when that has changed.
func TestMemoryFollowsTheRegistry(t *testing.T) {
	now := registryOf(t, 1, 1)
	changed := registryOf(t, 2, 2)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		set := make(chan *store.Snapshot, 10)
		ended := make(chan struct{})
		var current atomic.Pointer[store.Snapshot]
		current.Store(now)
		go func() {
			defer close(ended)
			followMemory(ctx, current.Load, now.Revision(), func(s *store.Snapshot) { set <- s })
		}()
		time.Sleep(2 * lookAgain)
		synctest.Wait()
		assert.Empty(t, set)
		current.Store(changed)
		time.Sleep(3 * lookAgain)
		synctest.Wait()
		assert.Len(t, set, 1)
		assert.Same(t, changed, <-set)
		cancel()
		<-ended
	})
}
