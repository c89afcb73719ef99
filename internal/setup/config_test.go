package setup_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

func TestFaults(t *testing.T) {
	t.Parallel()
	valid := setup.Section{Policies: setup.Defaults()}
	for want, change := range map[string]func(*setup.Section){
		"": func(c *setup.Section) {
			c.Retention, c.BacklogQuota.Bytes = setup.Retention{Time: time.Hour, Bytes: config.GiB}, config.GiB-1
		},
		"retention.time: must be >= 0 and whole minutes, got 1h0m1s": func(c *setup.Section) { c.Retention.Time = time.Hour + time.Second },
		"retention.bytes: must be whole MiB, got 1GB":                func(c *setup.Section) { c.Retention.Bytes = 1e9 },
		"backlog_quota.bytes: must be below retention.bytes, or Pulsar refuses it: got 1GiB and 1GiB": func(c *setup.Section) {
			c.Retention, c.BacklogQuota.Bytes = setup.Retention{Time: time.Hour, Bytes: config.GiB}, config.GiB
		},
		"backlog_quota.policy: must be one of producer_request_hold, producer_exception, consumer_backlog_eviction, got \"x\"": func(c *setup.Section) {
			c.BacklogQuota.Policy = "x"
		},
		"partitions: must be >= 0, got -1": func(c *setup.Section) { c.Partitions = -1 },
	} {
		c := valid
		change(&c)
		faults := config.Validate(c)
		if want == "" {
			assert.Empty(t, faults)
			continue
		}
		if assert.Len(t, faults, 1, want) {
			assert.EqualError(t, faults[0], want)
		}
	}
	evicting := setup.Defaults()
	evicting.BacklogQuota.Policy = messaging.EvictBacklog
	assert.EqualError(t, evicting.RefuseEviction("setup"), "setup.backlog_quota.policy: must not be consumer_backlog_eviction: what it removes is lost")
	assert.NoError(t, setup.Defaults().RefuseEviction("setup"))
}
