// Package script holds the library of Redis Functions that runs every write: it executes the
// command, notes what the command did in the outbox, and applies what other zones did.
package script

import (
	"embed"
	"io/fs"
	"strings"
)

//go:embed lua/*.lua
var files embed.FS

// Source returns the library's text: its files in order of their names.
func Source() (string, error) {
	names, err := fs.Glob(files, "lua/*.lua") // in order of name
	if err != nil {
		return "", err
	}
	var source strings.Builder
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			return "", err
		}
		source.Write(text)
	}
	return source.String(), nil
}
