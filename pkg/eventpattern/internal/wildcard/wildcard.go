// Package wildcard matches texts with patterns that contain *. It imports no other package of this
// repository.
package wildcard

import "bytes"

// MaxStars is how many * a wildcard may have.
const MaxStars = 32

// A Wildcard holds the parts of a wildcard's text: Prefix is before the first star, Middle between
// two stars, and Suffix after the last star.
type Wildcard struct {
	Prefix, Suffix []byte
	Middle         [][]byte
}

// Parse splits a text at its stars. For a text without a star it returns nil and the
// decoded text. why is the reason if the text is invalid.
func Parse(text string) (w *Wildcard, plain string, why string) {
	var parts [][]byte
	var part []byte
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '\\':
			i++
			if i == len(text) || text[i] != '*' && text[i] != '\\' {
				return nil, "", `in a wildcard, a backslash stands before * or \ only`
			}
			part = append(part, text[i])
		case '*':
			if i > 0 && len(part) == 0 && len(parts) > 0 {
				return nil, "", "a wildcard has no consecutive *"
			}
			parts = append(parts, part)
			part = nil
		default:
			part = append(part, c)
		}
	}
	if len(parts) == 0 {
		return nil, string(part), ""
	}
	if len(parts) > MaxStars {
		return nil, "", "a wildcard this complex is not allowed: it has too many *"
	}
	return &Wildcard{Prefix: parts[0], Suffix: part, Middle: parts[1:]}, "", ""
}

// HasEnds reports whether a text begins with the prefix and ends with the suffix.
func (w *Wildcard) HasEnds(text []byte) bool {
	return len(text) >= len(w.Prefix)+len(w.Suffix) && bytes.HasPrefix(text, w.Prefix) && bytes.HasSuffix(text, w.Suffix)
}

// HasMiddle reports whether a text for which HasEnds is true also contains the middle parts in
// order. It takes time proportional to the text: it searches each part after the previous one, and
// the first occurrence leaves the most text for the other parts.
func (w *Wildcard) HasMiddle(text []byte) bool {
	text = text[len(w.Prefix) : len(text)-len(w.Suffix)]
	for _, part := range w.Middle {
		at := bytes.Index(text, part)
		if at < 0 {
			return false
		}
		text = text[at+len(part):]
	}
	return true
}
