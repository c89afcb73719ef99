package batch

import (
	"fmt"
	"strings"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// Contents counts the contents of a request.
type Contents struct {
	Valid     Counts
	Invalid   Rejected
	Filtered  Filtered // of the valid ones
	Metadata  int
	Forgotten int // metadata entries that were not remembered
}

// Series returns the number of series, including invalid ones.
func (c *Contents) Series() int { return c.Valid.Series + c.Invalid.Counts.Series }

// Reasons for which valid samples are not published.
const (
	FilteredByFilter = iota
	FilteredByRelabel
	FilteredNameless // relabelling removed the metric's name
	FilteredByFormat // the format cannot contain them
	FilterReasons
)

// FilterReason returns a reason's label value in the metric.
func FilterReason(reason int) string {
	return [FilterReasons]string{"filter", "relabel", "nameless", "format"}[reason]
}

// Filtered counts by reason.
type Filtered [FilterReasons]Counts

// Total returns the sum over the reasons.
func (f *Filtered) Total() (all Counts) {
	for _, c := range f {
		all.Series += c.Series
		all.Samples += c.Samples
		all.Histograms += c.Histograms
		all.Exemplars += c.Exemplars
	}
	return all
}

// keptReasons is for how many invalid series of a request the answer explains the fault.
const keptReasons = 5

// Rejected collects the invalid series of a request. The other series are written. Rejected
// contains no strings that alias the request's body.
type Rejected struct {
	Counts  Counts // of the invalid series
	First   []string
	Reasons map[string]int // samples of all kinds by reason
}

// Add counts a series as invalid. It calls explain only for the first invalid series.
func (r *Rejected) Add(reason string, s *Series, explain func() string) {
	r.Counts.Add(s)
	if len(r.First) < keptReasons {
		r.First = append(r.First, truncate.Text(explain(), refusal.MaxReason))
	}
	if r.Reasons == nil {
		r.Reasons = make(map[string]int)
	}
	r.Reasons[reason] += s.Entries()
}

// Err returns the error for the sender, nil if nothing was rejected. of is the number of all
// series.
func (r *Rejected) Err(of int) error {
	if r.Counts.Series == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d series are invalid, the others were written", r.Counts.Series, of)
	for _, text := range r.First {
		b.WriteString("\n" + text)
	}
	if more := r.Counts.Series - len(r.First); more > 0 {
		fmt.Fprintf(&b, "\nand %d more", more)
	}
	return refusal.Invalid("invalid_series", "%s", b.String())
}
