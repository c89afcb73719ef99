package match

import "bytes"

// MaxWildcardStars is how many * one wildcard may have.
const MaxWildcardStars = 32

// wildcard is a text with stars: what stands before the first, between two, and behind the last.
type wildcard struct {
	prefix, suffix []byte
	middle         [][]byte
}

// parseWildcard splits a text at its stars. Without a star it returns nil and the decoded text.
func parseWildcard(text string) (w *wildcard, plain string, why string) {
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
	if len(parts) > MaxWildcardStars {
		return nil, "", "a wildcard this complex is not allowed: it has too many *"
	}
	return &wildcard{prefix: parts[0], suffix: part, middle: parts[1:]}, "", ""
}

// hasEnds reports whether a text begins and ends as it must.
func (w *wildcard) hasEnds(text []byte) bool {
	return len(text) >= len(w.prefix)+len(w.suffix) && bytes.HasPrefix(text, w.prefix) && bytes.HasSuffix(text, w.suffix)
}

// hasMiddle reports whether a text that has its ends has what is between. It takes time proportional to the text: each part is looked for behind the one before it,
// and the first place found leaves most to the rest.
func (w *wildcard) hasMiddle(text []byte) bool {
	text = text[len(w.prefix) : len(text)-len(w.suffix)]
	for _, part := range w.middle {
		at := bytes.Index(text, part)
		if at < 0 {
			return false
		}
		text = text[at+len(part):]
	}
	return true
}
