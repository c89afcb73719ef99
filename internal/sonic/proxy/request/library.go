package request

import (
	"bytes"
	"regexp"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// registersSonic finds the registration of a function by a name that a later version of Sonic's
// library may use, which Redis could not load then. Redis compares names without regard to case.
var registersSonic = regexp.MustCompile(`(?i)(?:register_function\s*\(?|function_name['"]?\]?\s*=)\s*(?:['"]|\[=*\[)sonic_`)

// LibraryError returns the error for a command that would call, replace or delete Sonic's own
// library, or "".
func LibraryError(cmd *command.Command, r Request) string {
	switch cmd.Name {
	case "fcall", "fcall_ro":
		if bytes.HasPrefix(bytes.ToLower(r.Arg(1)), []byte("sonic_")) {
			return "ERR Function not found"
		}
	case "function|delete":
		if resp.EqualFold(r.Arg(2), "sonic") {
			return "ERR Library not found"
		}
	case "function|load":
		header, body, _ := bytes.Cut(r.Arg(r.Len()-1), []byte("\n"))
		words, _ := resp.Words(header) // split as Redis does; Redis itself refuses unbalanced quotes
		for _, word := range words {
			if resp.EqualFold(word, "name=sonic") {
				return "ERR Sonic refuses 'function|load' of a library with the name of its own library"
			}
		}
		if registersSonic.Match(body) {
			return "ERR Sonic refuses 'function|load' of functions whose names begin with sonic_: they belong to Sonic"
		}
	}
	return ""
}
