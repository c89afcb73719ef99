package read

import (
	"context"
	"errors"

	"github.com/apache/pulsar-client-go/pulsar"
)

// errSought ends the session that has found where to begin. The next one has the usual queue.
var errSought = errors.New("found where to begin")

// beginsOlder reports whether the partition's first message is older than the first one to read:
// only then a seek is needed.
//
// A seek can go wrong at the broker (Pulsar 4.0.8): a read that is under way for the consumer moves
// the cursor again after the seek, and the consumer that connects again begins behind that. So the
// session that seeks has a queue of one message. Nothing is missed behind an old first message.
func (p *partition) beginsOlder(ctx context.Context) (bool, error) {
	r, err := p.r.parent.look(p.topic, pulsar.EarliestMessageID(), p.r.cfg.ReadCompacted, 1)
	if err != nil {
		return false, err
	}
	defer r.Close()
	m, err := nextWithin(ctx, r, p.r.parent.Waits.Nothing)
	switch {
	case err == nil:
		return m.PublishTime().Before(p.since), nil
	case errors.Is(err, errUnshown):
		return false, nil // too much is read rather than too little
	default:
		return false, err
	}
}
