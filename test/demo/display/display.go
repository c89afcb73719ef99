// Package display writes what the demo shows, as lines of text. It imports nothing of Aviary.
package display

import "strings"

// Progress writes each line that it is given as a note. The servers' stack logs to it.
type Progress struct{ *Screen }

// Write writes a note for each line.
func (p Progress) Write(text []byte) (int, error) {
	for line := range strings.Lines(string(text)) {
		p.Note("%s", strings.TrimRight(line, "\n"))
	}
	return len(text), nil
}
