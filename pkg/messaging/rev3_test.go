package messaging_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/wire"
)

// Another consumer acknowledges the beginning of the last batch, and the partition comes back.
func TestRestOfABatchIsHandledWhenThePartitionComesBack(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{true, false} {
		t.Run(fmt.Sprint("batch index here ", own), func(t *testing.T) {
			t.Parallel()
			s := wire.Start(t)
			s.CreateTopic(topic, 0)
			var batch []wire.Message
			for _, n := range numbered(3) {
				batch = append(batch, wire.Message{Key: "k", Payload: []byte(n)})
			}
			s.PublishBatch(topic, wire.None, batch...)
			cfg := quickConfig(messaging.Failover, messaging.OrderKey)
			cfg.AckBatchIndex = own
			reg := prometheus.NewRegistry()
			var done steps
			releaseFirst, releaseSecond, entered := make(chan struct{}), make(chan struct{}), make(chan struct{}, 10)
			first := start(t, dial(t, s.URL(), messaging.WithRegisterer(reg)), cfg, func(_ context.Context, d *messaging.Delivery) error {
				done.add("first ", d)
				if string(d.Payload) == "0" {
					entered <- struct{}{}
					<-releaseFirst
				}
				return nil
			})
			<-entered
			eventually(t, "all are here", func() bool { return received(t, reg) == 3 })
			cfg.AckBatchIndex = true
			second := start(t, dial(t, s.URL()), cfg, func(_ context.Context, d *messaging.Delivery) error {
				done.add("second ", d)
				if string(d.Payload) == "1" {
					<-releaseSecond
				}
				return nil
			})
			require.NoError(t, s.WaitConsumers(testContext(t), topic, "sub", 2))
			require.Equal(t, 1, s.ChangeActive(topic, "sub"))
			eventually(t, "the second has handled 0", func() bool { return s.Backlog(topic, "sub") == 2 })
			require.Equal(t, 1, s.ChangeActive(topic, "sub"))
			close(releaseFirst)
			time.Sleep(500 * time.Millisecond)
			close(releaseSecond) // its partition is another's: the rest is not started there
			s.Publish(topic, wire.Message{Key: "k", Payload: []byte("3")})
			eventually(t, "all is acknowledged", func() bool { return s.Backlog(topic, "sub") == 0 })
			first.stop(t)
			second.stop(t)
			t.Log(done.list())
			handled := strings.Join(done.list(), ",")
			require.Regexp(t, "(first|second) 2", handled, "never handled, and acknowledged")
			if own {
				require.Contains(t, handled, "first 1,first 2,first 3")
			}
		})
	}
}
