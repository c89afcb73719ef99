package process

import "strings"

// FirstLine returns the first line of s, at most 300 bytes.
func FirstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if len(line) > 300 {
		line = line[:300] + "..."
	}
	return line
}

// LastLine returns the last line of out, where most programs write why they failed.
func LastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return FirstLine(lines[len(lines)-1])
}
