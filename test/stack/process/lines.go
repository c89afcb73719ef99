package process

import "strings"

// FirstLine is the beginning of what a program wrote.
func FirstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if len(line) > 300 {
		line = line[:300] + "..."
	}
	return line
}

// LastLine is where a program that failed says why.
func LastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return FirstLine(lines[len(lines)-1])
}
