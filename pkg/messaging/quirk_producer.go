package messaging

import (
	"errors"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// isClosed reports whether the producer has closed itself, as it does when it is
// fenced on reconnecting. What sits in its batch builder then gets no outcome at
// all (doClose, producer_partition.go), so outcomes alone do not tell. A send whose
// context has ended goes no further than the check of the producer's state.
func isClosed(raw pulsar.Producer) (closed bool) {
	raw.SendAsync(canceled(), &pulsar.ProducerMessage{}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		closed = errors.Is(err, pulsar.ErrProducerClosed)
	})
	return closed
}

// never is an interval of the client's that does not pass.
const never = 1000 * 24 * time.Hour
