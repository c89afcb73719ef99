package messaging_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain checks that no goroutine is left behind. Requests that were given up go
// on behind until their operation timeout, so it waits that long before it judges.
func TestMain(m *testing.M) {
	code := m.Run()
	deadline := time.Now().Add(15 * time.Second)
	for code == 0 {
		err := goleak.Find(
			// A producer that the broker closes for good leaves its reconnect loop
			// behind in pulsar-client-go v0.21.0: doClose does not cancel the context
			// that the loop waits for, and Close then returns early
			// (producer_partition.go).
			goleak.IgnoreTopFunction("github.com/apache/pulsar-client-go/pulsar.(*partitionProducer).runEventsLoop.func1"),
			// A Subscribe that hangs for good (TestSubscribeThatHangsIsGivenUp).
			goleak.IgnoreAnyFunction("github.com/apache/pulsar-client-go/pulsar.(*consumer).internalTopicSubscribeToPartitions"),
			goleak.IgnoreAnyFunction("github.com/apache/pulsar-client-go/pulsar.(*partitionConsumer).clearQueueAndGetNextMessage"),
			goleak.IgnoreTopFunction("github.com/apache/pulsar-client-go/pulsar.(*negativeAcksTracker).track"),
		)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
