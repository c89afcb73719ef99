package read

import (
	"context"
	"errors"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

const (
	lookEntries       = 10 // before a position: one of them has a message
	lookBehindTimeout = 30 * time.Second
)

// nothingBehind reports whether no message is stored behind position, though entries are. Silence
// does not prove that: a broker with a limited rate or a slow store dispatches late. So separate
// readers must get a message before position at once, nothing behind it for some seconds, and
// again one before it at once.
func (p *partition) nothingBehind(ctx context.Context, position record.MessageID) bool {
	if position.IsZero() || position.Deduplicated() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lookBehindTimeout)
	defer cancel()
	waits := p.r.parent.Waits
	before := record.StartOf(position)
	before.Number = max(before.Number-lookEntries, 0)
	behind, _ := placeBehind(position)
	for _, look := range []struct {
		begin record.EntryPlace // behind which it begins
		after record.MessageID
		wait  time.Duration
		shown bool
	}{
		{before, record.MessageID{}, waits.Prompt, true},
		{behind, position, waits.Nothing, false},
		{before, record.MessageID{}, waits.Prompt, true},
	} {
		shown, err := clientquirks.CallUntil(ctx, func() (bool, error) {
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
func (p *partition) shows(
	ctx context.Context, begin record.EntryPlace, after record.MessageID, wait time.Duration,
) (bool, error) {
	start := pulsar.NewMessageID(begin.Ledger, begin.Entry(), -1, 0)
	// The queue is long: a batch with a wrong checksum takes as much of it as it has messages.
	r, err := p.r.parent.look(p.topic, start, p.r.cfg.ReadCompacted, maxQueue)
	if err != nil {
		return false, err
	}
	defer r.Close()
	for {
		m, err := nextWithin(ctx, r, wait)
		switch {
		case errors.Is(err, errUnshown):
			return false, nil
		case err != nil:
			return false, err
		case record.IDOf(m.ID(), p.index).Compare(after) > 0:
			return true, nil
		}
	}
}

// look opens an underlying reader that shows the stored messages, beside those that read for a
// caller.
func (c *Readers) look(topic string, start pulsar.MessageID, compacted bool, queue int) (pulsar.Reader, error) {
	return c.Consumers.CreateReader(pulsar.ReaderOptions{
		Topic: topic, StartMessageID: start, ReadCompacted: compacted,
		ReceiverQueueSize: queue, BackoffPolicyFunc: clientquirks.NewBackoff,
	})
}

// nextWithin returns r's next message, or errUnshown when none has come for as long as wait.
func nextWithin(ctx context.Context, r pulsar.Reader, wait time.Duration) (pulsar.Message, error) {
	waiting, cancel := context.WithTimeoutCause(ctx, wait, errUnshown)
	defer cancel()
	m, err := r.Next(waiting)
	if err != nil && waiting.Err() != nil {
		err = context.Cause(waiting)
	}
	return m, err
}
