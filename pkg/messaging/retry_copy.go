package messaging

import (
	"time"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

// copyJob is a delivery's verdict that a copy of it goes to another topic.
type copyJob struct {
	// to is nil for a copy on the retry topic that another subscription's consumer made: it only
	// has to be acknowledged.
	to     *copyTarget
	from   provenance
	record *Record

	bare    bool // the copy says no more than it has to
	kept    int  // bytes of the payload, while truncated
	parked  bool // it was counted as parked
	stored  bool
	sent    *Publisher // that err came from
	err     error      // of the last try
	backoff backoff.Backoff
}

func newCopyJob(d *Delivery, to *copyTarget, reason error, delay time.Duration) *copyJob {
	job := &copyJob{to: to, from: provenanceOf(d, to.subscription, reason.Error())}
	if to.retry {
		job.from.due = time.Now().Add(delay)
	}
	job.build(d)
	return job
}

// build makes the record of what d is and how much of it the copy is to have.
func (j *copyJob) build(d *Delivery) {
	payload := d.Payload
	if j.from.truncated > 0 {
		payload = payload[:j.kept:j.kept]
	}
	j.from.empty = payload != nil && len(payload) == 0
	j.record = &Record{
		Key: d.Key, OrderingKey: d.OrderingKey, Payload: payload, EventTime: d.EventTime,
		Properties: escape(d.Properties, j.from.marks(j.bare)),
	}
	if time.Until(j.from.due) > 0 {
		j.record.DeliverAt = j.from.due
	}
}

// strip leaves out of a copy that is too large what is not needed. It reports whether that makes
// a difference.
func (j *copyJob) strip(d *Delivery) bool {
	if j.bare {
		return false
	}
	j.bare = true
	j.build(d)
	return true
}

// truncateSlack is how much smaller a truncated copy is than the original, which was stored.
const truncateSlack = 512

// truncate cuts the payload of a copy that is too large. It reports whether that makes a
// difference. The first cut makes the copy smaller than the original was. Where the original was
// compressed better that is not enough: the next ones halve what is left.
func (j *copyJob) truncate(d *Delivery) bool {
	if len(j.record.Payload) == 0 {
		return false
	}
	if j.from.truncated > 0 {
		j.kept /= 2
	} else {
		added := truncateSlack
		for name, value := range j.from.marks(j.bare) {
			added += len(name) + len(value)
		}
		j.from.truncated, j.kept = len(d.Payload), max(len(d.Payload)-added, 0)
	}
	j.build(d)
	return true
}

// reset makes the copy whole again.
func (j *copyJob) reset(d *Delivery) {
	j.bare, j.kept, j.from.truncated, j.err = false, 0, 0, nil
	j.build(d)
}

// late reports whether the time of the next attempt has come and the copy still is not stored.
func (j *copyJob) late() bool { return j.to.retry && !time.Now().Before(j.from.due) }
