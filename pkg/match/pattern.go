package match

import (
	"bytes"
	"encoding/json"
	"slices"
)

// Bounds of patterns.
const (
	// MaxPatternBytes is the longest pattern.
	MaxPatternBytes = 256 << 10
	// MaxPatternDepth is how deep objects of a pattern may be nested.
	MaxPatternDepth = 64
	// MaxPatternBranches is how many combinations of the branches of $or a pattern may have.
	MaxPatternBranches = 1024
	// MaxPatternFields is how many fields these combinations may have together.
	MaxPatternFields = 16 << 10
	// MaxPatternAlternatives is how many alternatives the fields of these combinations may have together. What anything-but excludes counts, too.
	MaxPatternAlternatives = 64 << 10
	// MaxPatternPathBytes is how long the paths of all fields may be together.
	MaxPatternPathBytes = 1 << 20
)

// Pattern is a valid pattern. It is immutable and safe for concurrent use.
type Pattern struct {
	source string
	// branches are the combinations of the branches of $or, one of which has to hold. The order is that of the pattern.
	branches []conjunction
	weight   int
}

// Parse reads a pattern. The error is an [*Error]. Parse keeps nothing of the bytes.
func Parse(pattern []byte) (*Pattern, error) {
	if len(pattern) > MaxPatternBytes {
		return nil, &Error{Offset: MaxPatternBytes, Reason: "the pattern is too long"}
	}
	r := reader{src: pattern}
	branches, err := r.pattern()
	if err != nil {
		return nil, err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, pattern); err != nil {
		return nil, &Error{Reason: err.Error()} // the reader has accepted it
	}
	return &Pattern{source: compact.String(), branches: branches, weight: r.weight}, nil
}

// Weight tells how much an index takes for the pattern: fields and alternatives, in each of the combinations that its $or makes. A few hundred bytes of
// pattern may weigh 30,000, at some 50 bytes of memory each. It is for a bound on many patterns together.
func (p *Pattern) Weight() int { return p.weight }

// String returns the pattern as JSON without white space.
func (p *Pattern) String() string { return p.source }

// sortConjunction orders fields by path and puts those of the same path together.
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
