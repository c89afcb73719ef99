package nightingale

import (
	"fmt"
	"strings"

	"github.com/aviaryhq/aviary/internal/door"
)

// keptReasons is of how many invalid series of a request the faults are explained.
const keptReasons = 5

// rejected gathers what is invalid in a request whose other part is written. It
// holds no string of the request's body.
type rejected struct {
	counts  counts // of the invalid series
	first   []string
	reasons map[string]int // samples of all kinds by reason
}

func (r *rejected) add(reason string, s *series, explain func() string) {
	r.counts.add(s)
	if len(r.first) < keptReasons {
		r.first = append(r.first, door.Cut(explain(), door.MaxReason))
	}
	if r.reasons == nil {
		r.reasons = make(map[string]int)
	}
	r.reasons[reason] += s.entries()
}

// err is nil when nothing was rejected.
func (r *rejected) err(of int) error {
	if r.counts.series == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d series are invalid, the others were written", r.counts.series, of)
	for _, text := range r.first {
		b.WriteString("\n" + text)
	}
	if more := r.counts.series - len(r.first); more > 0 {
		fmt.Fprintf(&b, "\nand %d more", more)
	}
	return door.Invalid("invalid_series", "%s", b.String())
}
