package rabbitmq

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
)

// TestPrefetchFollowsTheSizeOfMessages: few at first, then as many as fit, and again when their
// size changes.
func TestPrefetchFollowsTheSizeOfMessages(t *testing.T) {
	p := newPrefetch(Queue{Type: typeClassic}, 2000, 32<<20)
	assert.Equal(t, 32, p.beginChannel())
	// after notes messages of one size and returns how many of them it took to change the count.
	after := func(size int64, most int) int {
		for n := 1; n <= most; n++ {
			if p.observe(size) {
				return n
			}
		}
		return 0
	}
	assert.Equal(t, 32, after(500, 1000))
	assert.Equal(t, 2000, p.beginChannel(), "not more than prefetch")
	assert.Zero(t, after(16<<10, 10_000), "they fit")
	assert.Zero(t, after(20<<10, 10_000), "that is not worth a change")
	assert.LessOrEqual(t, after(1<<20, 1000), minSamples)
	assert.Less(t, p.beginChannel(), 200, "the average")
	after(1<<20, 1000)
	assert.InDelta(t, 32, p.beginChannel(), 32)
	assert.Positive(t, after(100<<20, 1000))
	assert.Equal(t, 1, p.beginChannel(), "one at least")
	assert.Positive(t, after(1<<20, 1000))
	assert.Equal(t, 32, p.beginChannel())
}

// TestPrefetchWaitsForTheSink: while what was taken is not stored the channel does not end: its
// messages would come again and be stored twice.
func TestPrefetchWaitsForTheSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultSourceConfig()
		cfg.Queues = []Queue{{Name: "q"}}
		s := cfg.NewSource(connector.Options{}).(*Source)
		consumer := s.consumers[0]
		first := consumer.prefetch.beginChannel()
		var mu sync.Mutex
		var waiting []func(error)
		unavailable, offered := true, 0
		set := newSet(t, sinkOf(func(_ *message.Message, done func(error)) {
			mu.Lock()
			defer mu.Unlock()
			if offered++; unavailable {
				waiting = append(waiting, done)
				return
			}
			done(nil)
		}), "")
		l := set.Open("q", func(int64) error { return nil })
		deliveries := make(chan amqp.Delivery)
		ended := make(chan error, 1)
		alive, end := context.WithCancel(t.Context())
		defer end()
		go func() { ended <- consumer.forward(alive, deliveries, l) }()
		n := 0
		put := func(count int) {
			for range count {
				n++
				deliveries <- amqp.Delivery{DeliveryTag: uint64(n), Body: []byte("x")}
			}
			synctest.Wait()
		}
		put(3 * first) // it would have changed long since
		time.Sleep(resizeTimeout + 1)
		synctest.Wait()
		assert.Equal(t, 3*first, offered)
		assert.Empty(t, ended)
		assert.Equal(t, first, consumer.prefetch.count)
		mu.Lock()
		unavailable = false
		mu.Unlock()
		for _, done := range waiting {
			done(nil)
		}
		put(first - 1)
		deliveries <- amqp.Delivery{DeliveryTag: uint64(n + 1), Body: []byte("x")}
		synctest.Wait()
		require.ErrorIs(t, <-ended, errResize)
		assert.Greater(t, consumer.prefetch.beginChannel(), first)
		require.NoError(t, l.Close(t.Context()))
	})
}
