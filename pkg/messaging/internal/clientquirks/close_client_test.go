package clientquirks_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

// opening is a client whose lookups take a while.
type opening struct {
	pulsar.Client
	takes  time.Duration
	mu     sync.Mutex
	events []string
}

func (c *opening) TopicPartitions(string) ([]string, error) {
	time.Sleep(c.takes)
	c.note("opened")
	return nil, nil
}

func (c *opening) Close() { c.note("closed") }

func (c *opening) note(event string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, event)
}

func TestClosingWaitsForWhatIsBeingOpened(t *testing.T) {
	for takes, want := range map[time.Duration][]string{
		time.Second / 2: {"opened", "closed"},
		time.Minute:     {"closed", "opened"},
	} {
		synctest.Test(t, func(t *testing.T) {
			raw := &opening{takes: takes}
			c := &clientquirks.RawClient{Client: raw}
			go func() { _, _ = c.TopicPartitions(topic) }()
			synctest.Wait()
			c.Close()
			time.Sleep(time.Hour)
			raw.mu.Lock()
			defer raw.mu.Unlock()
			require.Equal(t, want, raw.events)
		})
	}
}
