package messaging

import (
	"errors"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// readerQuiet finds a session that is sent nothing any more though the partition has more. A broker
// counts a batch as its messages. When its checksum is wrong, the underlying client gives back
// one (pulsar-client-go v0.21.0 consumer_partition.go, discardCorruptedMessage), and never comes to
// asking for more. Then the session ends, and the next one has a longer queue. A session that was
// only slow loses nothing by it.
type readerQuiet struct {
	wait  time.Duration
	last  MessageID // received
	heard bool      // something was received since the wait began
	end   MessageID // of the partition, when it was quiet before
	again int       // sessions in succession that were ended
}

var (
	errSilent    = errors.New("nothing comes though the topic has more")
	errLongQueue = errors.New("the session had a long queue")
)

const (
	// quietAtFirst is how long a session is quiet until its partition's end is looked at.
	quietAtFirst = 3 * time.Second
	// quietAtMost is how long that becomes where quiet lasts.
	quietAtMost = 5 * time.Minute
	// quietQueue is the longest queue: batches with more messages cannot be passed.
	quietQueue = 1 << 14
)

// begin takes notice of a session that begins behind position.
func (q *readerQuiet) begin(position MessageID) {
	q.wait = max(q.wait, quietAtFirst)
	q.last, q.heard = position, false
}

func (q *readerQuiet) received(id MessageID) { q.last, q.heard = id, true }

// queueLength is the length of the next session's queue, which is usual at first.
func (q *readerQuiet) queueLength(usual int) int {
	for range q.again {
		usual = min(4*usual, max(quietQueue, usual))
	}
	return usual
}

// starved reports, when a wait is over, whether the session is to end: what stood behind the latest
// message when the wait began has not come.
func (p *readerPartition) starved() bool {
	q := &p.quiet
	if q.heard {
		q.wait, q.heard, q.end = quietAtFirst, false, MessageID{}
		return false
	}
	more := func() bool {
		return q.end.entry >= 0 && !q.end.IsZero() &&
			(q.last.IsZero() || q.end.Compare(q.last) > 0 && !q.end.sameEntry(q.last))
	}
	if more() {
		q.wait = min(2*q.wait, quietAtMost)
		q.again++
		return true
	}
	raw, err := patiently(p.r.ctx, p.r.client, func() (pulsar.MessageID, error) {
		return p.r.client.lastID(p.topic, p.r.cfg.ReadCompacted)
	}, nil)
	if err == nil {
		q.end = messageID(raw, p.index)
	}
	if !more() {
		q.wait = min(2*q.wait, quietAtMost)
	}
	return false
}
