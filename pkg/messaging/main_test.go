package messaging_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// A producer that the broker closes for good leaves its reconnect loop behind
		// in pulsar-client-go v0.21.0: doClose does not cancel the context that the
		// loop waits for, and Close then returns early (producer_partition.go).
		goleak.IgnoreTopFunction("github.com/apache/pulsar-client-go/pulsar.(*partitionProducer).runEventsLoop.func1"),
	)
}
