package messaging_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// These variables make the test binary the consumer of a backlog instead, so that a test can
// measure the memory of a process that does nothing else.
const (
	childURL   = "AVIARY_TEST_CHILD_URL"
	childTopic = "AVIARY_TEST_CHILD_TOPIC"
	childType  = "AVIARY_TEST_CHILD_TYPE"
	childCount = "AVIARY_TEST_CHILD_COUNT" // of messages of 1 MiB
)

// consumeBacklog handles all messages of the backlog and prints the process's peak resident memory
// in KiB. The test that starts the process limits its time.
func consumeBacklog(url string) error {
	backlog, err := strconv.Atoi(os.Getenv(childCount))
	if err != nil {
		return fmt.Errorf("%s: %w", childCount, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client, err := messaging.Dial(ctx, messaging.Config{URL: url})
	if err != nil {
		return err
	}
	cfg := consumerConfig(os.Getenv(childTopic), messaging.SubscriptionType(os.Getenv(childType)))
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
	err = c.Run(ctx, func(_ context.Context, d *messaging.Delivery) error {
		if slow {
			time.Sleep(5 * time.Millisecond)
		}
		if len(d.Payload) == 1<<20 && int(handled.Add(1)) == backlog {
			cancel()
		}
		return nil
	})
	if err != nil {
		return err
	}
	// Not by getrusage: that has the peak of the parent too.
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	fmt.Println("peak:", strings.Fields(peak)[0])
	return nil
}
