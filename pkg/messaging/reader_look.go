package messaging

import (
	"context"
	"errors"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const (
	// lookEntries is how many entries before a position are enough to see one of them.
	lookEntries = 10
	// lookBehindTimeout bounds all that a decision takes.
	lookBehindTimeout = 30 * time.Second
)

// nothingBehind reports whether no message is stored behind position, though entries are. Silence
// alone does not say so, for a broker may dispatch late: its rate is limited, or it cannot read
// from its store. So separate readers must be shown a message before position at once, then
// nothing behind it for some seconds, and again one before it at once.
func (p *readerPartition) nothingBehind(ctx context.Context, position MessageID) bool {
	if position.IsZero() || position.Deduplicated() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lookBehindTimeout)
	defer cancel()
	waits := p.r.parent.waits
	before := startOf(position)
	before.number = max(before.number-lookEntries, 0)
	behind, _ := placeBehind(position)
	for _, look := range []struct {
		begin entryPlace // behind which it begins
		after MessageID
		wait  time.Duration
		shown bool
	}{
		{before, MessageID{}, waits.prompt, true},
		{behind, position, waits.nothing, false},
		{before, MessageID{}, waits.prompt, true},
	} {
		shown, err := callUntil(ctx, func() (bool, error) {
			return p.shows(ctx, look.begin, look.after, look.wait)
		}, nil)
		if err != nil || shown != look.shown {
			return false
		}
	}
	return true
}

// shows reports whether a reader that begins behind begin is shown a message behind after, until
// nothing has come for as long as wait.
func (p *readerPartition) shows(
	ctx context.Context, begin entryPlace, after MessageID, wait time.Duration,
) (bool, error) {
	r, err := p.r.parent.consumers.CreateReader(pulsar.ReaderOptions{
		Topic:          p.topic,
		StartMessageID: pulsar.NewMessageID(begin.ledger, begin.entry(), -1, 0),
		ReadCompacted:  p.r.cfg.ReadCompacted,
		// Long, for a batch whose checksum is wrong takes as much of it as it has messages.
		ReceiverQueueSize: readerMaxQueue,
		BackoffPolicyFunc: newBackoff,
	})
	if err != nil {
		return false, err
	}
	defer r.Close()
	for {
		waiting, cancel := context.WithTimeoutCause(ctx, wait, errUnshown)
		m, err := r.Next(waiting)
		cause := context.Cause(waiting)
		cancel()
		switch {
		case err != nil && errors.Is(cause, errUnshown):
			return false, nil
		case err != nil:
			return false, err
		case messageID(m.ID(), p.index).Compare(after) > 0:
			return true, nil
		}
	}
}
