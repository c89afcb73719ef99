package replies

import (
	"github.com/aviaryhq/aviary/internal/sonic/proxy/publishing"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// sonicLibrary is the name of Sonic's own library of functions.
const sonicLibrary = "sonic"

// LibraryNames returns the names of the clients' libraries in a reply to FUNCTION LIST.
func LibraryNames(reply []byte) (names []string) {
	for _, library := range resp.Elements(reply) {
		if name := libraryName(library); name != sonicLibrary {
			names = append(names, name)
		}
	}
	return names
}

// WithoutSonic removes Sonic's own library from a reply to FUNCTION LIST, and what Sonic has put
// into the text of others.
func WithoutSonic(reply []byte) []byte {
	all := resp.Elements(reply)
	if all == nil {
		return reply
	}
	var kept []byte
	n := 0
	for _, library := range all {
		if libraryName(library) != sonicLibrary {
			kept = append(kept, withOriginalText(library)...)
			n++
		}
	}
	return append(resp.AppendHeader(nil, reply[0], n), kept...)
}

func withOriginalText(library []byte) []byte {
	fields := resp.Elements(library)
	if len(fields) < 2 || string(resp.Text(fields[len(fields)-2])) != "library_code" {
		return library
	}
	text := fields[len(fields)-1]
	return resp.AppendBulk(library[:len(library)-len(text):len(library)-len(text)], publishing.Original(resp.Text(text)))
}

func libraryName(library []byte) string {
	fields := resp.Elements(library)
	for i := 0; i+1 < len(fields); i += 2 {
		if string(resp.Text(fields[i])) == "library_name" {
			return string(resp.Text(fields[i+1]))
		}
	}
	return ""
}
