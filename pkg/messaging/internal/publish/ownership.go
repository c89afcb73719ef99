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

// noReconnect makes the end of the producer's connection its loss. By itself the client connects
// again and sends all that it holds again, perhaps behind what another publisher has written. The
// broker prevents that only in part: a shared producer does not raise the topic epoch, and one that
// waits for exclusive access is let in whatever its epoch.
//
// The client asks for its back-off policy when, and only when, a connection has ended
// (pulsar-client-go v0.21.0 producer_partition.go, reconnectToBroker).
func (pp *partitionPublisher) noReconnect(options *pulsar.ProducerOptions) {
	options.MaxReconnectToBroker = new(uint)
	options.BackOffPolicyFunc = func() rawbackoff.Policy {
		pp.p.recordDisconnect()
		pp.giveUp(errConnectionLost)
		return clientquirks.NewBackoff()
	}
}
