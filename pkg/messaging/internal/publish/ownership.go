package publish

import (
	"errors"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"

	rawbackoff "github.com/apache/pulsar-client-go/pulsar/backoff"
)

var errConnectionLost = errors.New("connection lost")

func (o Ownership) raw() pulsar.ProducerAccessMode {
	switch o {
	case ExclusiveOwnership:
		return pulsar.ProducerAccessModeExclusive
	case WaitForOwnership:
		return pulsar.ProducerAccessModeWaitForExclusive
	default:
		return pulsar.ProducerAccessModeShared
	}
}

// noReconnect keeps the producer from connecting again when its connection ends, and tells the
// partition that it is lost. By itself the client connects again and sends all that it holds again,
// which can be behind what another publisher has written in the meantime. The broker prevents that
// only in part: it fences a producer whose topic epoch is old, but a shared producer does not raise
// the epoch, and one that waits for exclusive access is let in whatever its epoch.
//
// The client asks for its back-off policy when, and only when, a connection has ended
// (pulsar-client-go v0.21.0 producer_partition.go, reconnectToBroker), which is how we learn of it.
func (pp *partitionPublisher) noReconnect(options *pulsar.ProducerOptions) {
	options.MaxReconnectToBroker = new(uint)
	options.BackOffPolicyFunc = func() rawbackoff.Policy {
		pp.p.recordDisconnect()
		pp.giveUp(errConnectionLost)
		return clientquirks.NewBackoff()
	}
}
