// Package script holds the library of Redis functions that runs every write. The library executes
// the command, adds its effects to the outbox, and applies the effects of other zones.
// A write is sent as FCALL sonic_<command> 1 <outbox> <mode> <arguments of the command>. The mode is
// the number of the database, then flags: p, the reply is [id of the outbox's entry or nil, reply];
// r, the client speaks RESP3; t and the id of the client's transaction in hexadecimal digits. The
// reply is that of the command, except for values that Lua cannot express: see [TranslationOf].
// The package may import cluster.
package script

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed lua/*.lua
var files embed.FS

// source returns the library's text: its files in order of their names.
func source() (string, error) {
	names, err := fs.Glob(files, "lua/*.lua") // in order of name
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, name := range names {
		part, err := files.ReadFile(name)
		if err != nil {
			return "", err
		}
		text.Write(part)
	}
	return text.String(), nil
}

// Library returns the library's text and its version. The version is a digest of the text: the
// function sonic_version, which ends the text, returns it.
func Library() (text, version string, err error) {
	text, err = source()
	if err != nil {
		return "", "", fmt.Errorf("read the embedded library: %w", err)
	}
	digest := sha256.Sum256([]byte(text))
	version = hex.EncodeToString(digest[:8])
	text += fmt.Sprintf(`
redis.register_function{
	function_name = 'sonic_version', flags = {'no-writes'},
	callback = function() return '%s' end,
}
`, version)
	return text, version, nil
}
