package read

import (
	"errors"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// quiet finds a session to which the broker sends nothing though the partition has more. A broker
// counts a batch as its messages. For one with a wrong checksum the underlying client gives back a
// single permit (pulsar-client-go v0.21.0 consumer_partition.go, discardCorruptedMessage), and
// never asks for more. Then the session ends, and the next one has a longer queue.
type quiet struct {
	waits waits
	wait  time.Duration
	last  record.MessageID // received
	heard bool             // something was received since the wait began
	end   record.MessageID // of the partition, when it was quiet before
	again int              // sessions in succession that were ended: the queue is four times as long for each
	came  bool             // something new came in this session
	tried bool             // the usual queue is known to be too short where reading begins
}

var (
	errSilent    = errors.New("nothing comes though the topic has more")
	errLongQueue = errors.New("the session had a long queue")
)

const (
	// quietQueue is the longest queue: batches with more messages cannot be passed.
	quietQueue = 1 << 14
	// quietLong is from how many sessions on a queue is longer than is kept without need.
	quietLong = 2
)

// begin takes notice of a session that begins behind position.
func (q *quiet) begin(position record.MessageID) {
	q.wait = max(q.wait, q.waits.Quiet)
	q.last, q.heard, q.came = position, false, false
}

func (q *quiet) received(id record.MessageID) { q.last, q.heard = id, true }

// queueLength is the length of the next session's queue, which is usual at first.
func (q *quiet) queueLength(usual int) int {
	for range q.again {
		usual = min(4*usual, max(quietQueue, usual))
	}
	return usual
}

// shortens is called when something new comes, and reports whether the session is to end for one
// with the usual queue, so that the broker sends no more than usual ahead. The queue stays long
// while reading may begin again with a batch (gap) that needs it. Whether one does is not known:
// the queue also grows behind other entries that bring no message. So the usual queue is tried
// again once, and messages behind the batch show whether it is too short.
func (q *quiet) shortens(gap bool) bool {
	q.came = true
	keep := gap && (q.tried || q.again < quietLong)
	q.tried = gap && (q.tried || q.again >= quietLong)
	if q.again == 0 || keep {
		return false
	}
	q.again, q.wait = 0, q.waits.Quiet
	return true
}

// more reports whether the partition's end is known to be behind the received messages.
func (q *quiet) more() bool {
	return record.EntryOf(q.end).Entry() >= 0 && !q.end.IsZero() &&
		(q.last.IsZero() || q.end.Compare(q.last) > 0 && !record.SameEntry(q.end, q.last))
}

// starved reports, when a wait is over, whether the session is to end: what stood behind the latest
// message when the wait began has not come.
func (p *partition) starved() bool {
	q := &p.quiet
	if q.heard {
		q.wait, q.heard, q.end = q.waits.Quiet, false, record.MessageID{}
		return false
	}
	if q.more() {
		q.wait = min(2*q.wait, q.waits.quietAtMost)
		q.again++
		q.tried = q.tried && !q.came // what came before needs no longer queue, and there may be another gap
		return true
	}
	raw, err := cluster.CallWithTimeout(p.r.ctx, p.r.parent.Cluster, func() (pulsar.MessageID, error) {
		return p.r.parent.lastID(p.topic, p.r.cfg.ReadCompacted)
	}, nil)
	if err == nil {
		q.end = record.IDOf(raw, p.index)
	}
	if !q.more() {
		q.wait = min(2*q.wait, q.waits.quietAtMost)
	}
	return false
}
