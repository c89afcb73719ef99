package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// With consumesBacklog set the test binary runs no tests but [consumeBacklog] with its arguments,
// so that a test can measure the memory of a consumer alone.
const consumesBacklog = "AVIARY_TEST_CONSUMES_BACKLOG"

// consumeBacklog handles as many messages of 1 MiB as backlog says, and prints how many it has
// handled, and the process's peak resident memory in KiB. The test that starts the process limits
// its time.
func consumeBacklog(url, topic, kind, backlog string) error {
	count, err := strconv.Atoi(backlog)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client, err := messaging.Dial(ctx, messaging.Config{URL: url})
	if err != nil {
		return err
	}
	cfg := consumerConfig(topic, messaging.SubscriptionType(kind))
	cfg.Subscription = "child-" + string(cfg.Type)
	cfg.Retry.InPlace = true
	// The failover subscription's handler is slower than the broker: what is received waits in the
	// queue.
	slow := cfg.Type == messaging.Failover
	if slow {
		cfg.Concurrency = 1
	}
	c, err := client.Consumer(cfg)
	if err != nil {
		return err
	}
	var handled atomic.Int32
	began := time.Now()
	err = c.Run(ctx, func(_ context.Context, d *messaging.Delivery) error {
		if slow {
			time.Sleep(5 * time.Millisecond)
		}
		if len(d.Payload) == 1<<20 && int(handled.Add(1)) == count {
			cancel()
		}
		return nil
	})
	took := time.Since(began)
	if err := errors.Join(err, client.Close(context.Background())); err != nil {
		return err
	}
	// getrusage would include the peak of the parent.
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	fmt.Println("figures:", handled.Load(), strings.Fields(peak)[0], took.Milliseconds())
	return nil
}
