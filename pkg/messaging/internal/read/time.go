package read

import (
	"context"
	"errors"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

// errSought ends the session that has found where to begin. The next one has the usual queue.
var errSought = errors.New("found where to begin")

// beginsOlder reports whether the partition's first message is older than what is to be read, so
// that a seek is needed to pass over such ones.
//
// A seek can go wrong at the broker (Pulsar 4.0.8): what it reads for the consumer while the seek
// comes moves the cursor once more when it is done, and the consumer that connects again begins
// behind that. So whoever seeks asks for one message only, the partition's first one. When that is
// older nothing is missed behind it. When it is to be read itself there is nothing to seek.
func (p *readerPartition) beginsOlder(ctx context.Context) (bool, error) {
	r, err := p.r.parent.Consumers.CreateReader(pulsar.ReaderOptions{
		Topic:             p.topic,
		StartMessageID:    pulsar.EarliestMessageID(),
		ReadCompacted:     p.r.cfg.ReadCompacted,
		ReceiverQueueSize: 1,
		BackoffPolicyFunc: clientquirks.NewBackoff,
	})
	if err != nil {
		return false, err
	}
	defer r.Close()
	waiting, cancel := context.WithTimeoutCause(ctx, p.r.parent.Waits.Nothing, errUnshown)
	defer cancel()
	m, err := r.Next(waiting)
	switch {
	case err == nil:
		return m.PublishTime().Before(p.since), nil
	case errors.Is(context.Cause(waiting), errUnshown):
		return false, nil // too much is read rather than too little
	default:
		return false, err
	}
}
