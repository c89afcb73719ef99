package eventpattern

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/wildcard"
	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// Bounds of patterns.
const (
	// MaxPatternBytes is the maximum length of a pattern.
	MaxPatternBytes = 256 << 10
	// MaxPatternDepth is the maximum nesting depth of objects in a pattern.
	MaxPatternDepth = 64
	// MaxPatternBranches is how many combinations of the branches of $or a pattern may have.
	MaxPatternBranches = 1024
	// MaxPatternFields is how many fields these combinations may have together.
	MaxPatternFields = 16 << 10
	// MaxPatternAlternatives is how many alternatives the fields of these combinations may have
	// together. This includes the values that anything-but excludes.
	MaxPatternAlternatives = 64 << 10
	// MaxPatternPathBytes is the maximum total length of the paths of all fields.
	MaxPatternPathBytes = 1 << 20
	// MaxWildcardStars is how many * a wildcard may have.
	MaxWildcardStars = wildcard.MaxStars
)

// Pattern is a valid pattern. It is immutable and safe for concurrent use.
type Pattern struct {
	// branches are the combinations of the branches of $or, in the order of the pattern. At least
	// one of them must hold.
	branches []conjunction
	weight   int
}

// Parse reads a pattern. The error is an [*Error]. The caller may change the bytes afterwards.
// docs/patterns.md describes the language. In addition: an address with a zone, such as
// fe80::1%eth0, is not an address for {"cidr": ...}.
func Parse(pattern []byte) (*Pattern, error) {
	if len(pattern) > MaxPatternBytes {
		return nil, &Error{Offset: MaxPatternBytes, Reason: "the pattern is too long"}
	}
	var syntax *json.SyntaxError
	if err := json.Unmarshal(pattern, new(json.RawMessage)); errors.As(err, &syntax) {
		return nil, &Error{Offset: max(int(syntax.Offset)-1, 0), Reason: "the pattern is not JSON: " + err.Error()}
	}
	r := reader{json: jsontext.Scanner{Src: pattern}}
	branches, err := r.pattern()
	if err != nil {
		return nil, err
	}
	return &Pattern{branches, r.weight}, nil
}

// Weight measures the memory that an index needs for the pattern. It is the number of fields and
// alternatives in all combinations of $or, some 100 bytes of memory each. A pattern of a few hundred
// bytes may have a weight of 30,000. Callers use it to bound many patterns together.
func (p *Pattern) Weight() int { return p.weight }

// sortConjunction sorts fields by path, and merges those with the same path.
func sortConjunction(fields []*field) conjunction {
	slices.SortStableFunc(fields, func(a, b *field) int { return slices.Compare(a.path, b.path) })
	out := fields[:0]
	for _, f := range fields {
		if n := len(out); n > 0 && slices.Equal(out[n-1].path, f.path) {
			both := *out[n-1]
			both.groups = slices.Concat(both.groups, f.groups)
			out[n-1] = &both
			continue
		}
		out = append(out, f)
	}
	return out
}
