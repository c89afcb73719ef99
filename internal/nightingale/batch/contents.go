package batch

import (
	"fmt"
	"strings"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// Contents counts the contents of a request.
type Contents struct {
	Valid    Counts
	Invalid  Rejected
	Filtered Filtered // of the valid ones
	Metadata MetadataCounts
	Cost     int // of the tenant's quota, see Batch.Cost
}

// MetadataCounts counts metadata entries: those of a request that were remembered or ignored, and
// the remembered ones of any request that were evicted for them.
type MetadataCounts struct{ Remembered, Ignored, Evicted int }

// Series returns the number of series, including invalid ones.
func (c *Contents) Series() int { return c.Valid.Series + c.Invalid.Counts.Series }

// Reasons for which valid samples are not published.
const (
	FilteredByRelabel = iota
	FilteredNameless  // relabelling removed the metric's name
	FilteredByFormat  // the format cannot contain them
	FilterReasons
)

// FilterReason returns a reason's label value in the metric.
func FilterReason(reason int) string {
	return [FilterReasons]string{"relabel", "nameless", "format"}[reason]
}

// Filtered counts by reason.
type Filtered [FilterReasons]Counts

// Total returns the sum over the reasons.
func (f *Filtered) Total() (all Counts) {
	for _, c := range f {
		all.Add(c)
	}
	return all
}

// keptReasons is for how many invalid series of a request the answer explains the fault.
const keptReasons = 5

// Rejected collects the invalid series of a request. The other series are written. Rejected
// contains no strings that alias the request's body.
type Rejected struct {
	Counts   Counts // of the invalid series, and of the samples that RejectTooLarge has counted
	First    []string
	Reasons  map[string]int // samples of all kinds by reason
	Metadata int            // invalid metadata
}

// Add counts a series as invalid. It calls explain only for the first invalid series.
func (r *Rejected) Add(reason string, s *Series, explain func() string) {
	r.Counts.Add(s.Counts())
	r.explain(explain)
	r.count(reason, s.Entries())
}

// AddMetadata counts the metadata of a family as invalid.
func (r *Rejected) AddMetadata(family, why string) {
	r.Metadata++
	r.explain(func() string { return fmt.Sprintf("metadata of %q %s", truncate.Text(family, 64), why) })
}

// explain keeps the text if it is one of the first.
func (r *Rejected) explain(text func() string) {
	if len(r.First) < keptReasons {
		r.First = append(r.First, truncate.Text(text(), refusal.MaxReason))
	}
}

func (r *Rejected) count(reason string, entries int) {
	if r.Reasons == nil {
		r.Reasons = make(map[string]int)
	}
	r.Reasons[reason] += entries
}

// RejectTooLarge counts samples as invalid instead of valid, because the broker does not accept
// their messages.
func (c *Contents) RejectTooLarge(n Counts) {
	entries := n.Entries()
	if entries == 0 {
		return
	}
	n.Series = 0 // other samples of these series may be written
	c.Valid.Subtract(n)
	c.Invalid.Counts.Add(n)
	c.Invalid.count(RecordTooLarge, entries)
}

// RecordTooLarge is the reason for samples whose message is larger than the broker accepts.
const RecordTooLarge = "record_too_large"

// Err returns the error for the sender, nil if nothing was rejected. of is the number of all
// series.
func (r *Rejected) Err(of int) error {
	var parts []string
	if n := r.Counts.Series; n > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d series are invalid", n, of))
	}
	if n := r.Reasons[RecordTooLarge]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d samples are in messages that are larger than the broker accepts", n))
	}
	if n := r.Metadata; n > 0 {
		parts = append(parts, fmt.Sprintf("%d metadata entries are invalid", n))
	}
	if len(parts) == 0 {
		return nil
	}
	text := strings.Join(parts, ", ") + ", the others were written"
	for _, one := range r.First {
		text += "\n" + one
	}
	if more := r.Counts.Series + r.Metadata - len(r.First); more > 0 {
		text += fmt.Sprintf("\nand %d more", more)
	}
	return refusal.Invalid("invalid_series", "%s", text)
}
