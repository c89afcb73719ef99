package retry

import (
	"time"

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// CopyJob is a delivery's verdict that a copy of it goes to another topic.
type CopyJob struct {
	// To is nil for a copy on the retry topic that another subscription's consumer made: it only
	// has to be acknowledged.
	To     *CopyTarget
	From   record.Provenance
	Record *record.Record

	bare    bool // the copy says no more than it has to
	Kept    int  // bytes of the payload, while truncated
	Parked  bool // it was counted as parked
	Stored  bool
	Sent    *publish.Publisher // that err came from
	Err     error              // of the last try
	Backoff backoff.Backoff
}

// NewCopyJob makes the copy of d for to, which is due after delay on a retry topic.
func NewCopyJob(d *record.Delivery, to *CopyTarget, reason error, delay time.Duration) *CopyJob {
	job := &CopyJob{To: to, From: record.ProvenanceOf(d, to.subscription, reason.Error())}
	if to.Retry {
		job.From.Due = time.Now().Add(delay)
	}
	job.build(d)
	return job
}

// build makes the record of what d is and how much of it the copy is to have.
func (j *CopyJob) build(d *record.Delivery) {
	payload := d.Payload
	if j.From.Truncated > 0 {
		payload = payload[:j.Kept:j.Kept]
	}
	j.From.Empty = payload != nil && len(payload) == 0
	j.Record = &record.Record{
		Key: d.Key, OrderingKey: d.OrderingKey, Payload: payload, EventTime: d.EventTime,
		Properties: record.Escape(d.Properties, j.From.Marks(j.bare)),
	}
	if time.Until(j.From.Due) > 0 {
		j.Record.DeliverAt = j.From.Due
	}
}

// Strip removes unneeded parts from a copy that is too large. It reports whether that makes a
// difference.
func (j *CopyJob) Strip(d *record.Delivery) bool {
	if j.bare {
		return false
	}
	j.bare = true
	j.build(d)
	return true
}

// truncateSlack is how much smaller a truncated copy is than the original, which was stored.
const truncateSlack = 512

// Truncate cuts the payload of a copy that is too large. It reports whether that makes a
// difference. The first cut makes the copy smaller than the original was. Where the original was
// compressed better that is not enough: the next ones halve the rest.
func (j *CopyJob) Truncate(d *record.Delivery) bool {
	if len(j.Record.Payload) == 0 {
		return false
	}
	if j.From.Truncated > 0 {
		j.Kept /= 2
	} else {
		added := truncateSlack
		for name, value := range j.From.Marks(j.bare) {
			added += len(name) + len(value)
		}
		j.From.Truncated, j.Kept = len(d.Payload), max(len(d.Payload)-added, 0)
	}
	j.build(d)
	return true
}

// Reset makes the copy whole again.
func (j *CopyJob) Reset(d *record.Delivery) {
	j.bare, j.Kept, j.From.Truncated, j.Err = false, 0, 0, nil
	j.build(d)
}

// Late reports whether the time of the next attempt has come and the copy still is not stored.
func (j *CopyJob) Late() bool { return j.To.Retry && !time.Now().Before(j.From.Due) }
