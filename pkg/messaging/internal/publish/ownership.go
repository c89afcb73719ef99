package publish

import (
	"errors"

	"github.com/apache/pulsar-client-go/pulsar"
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
