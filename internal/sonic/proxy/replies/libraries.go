package replies

import "github.com/aviaryhq/aviary/internal/sonic/resp"

// sonicLibrary is the name of Sonic's own library of functions.
const sonicLibrary = "sonic"

// LibraryNames returns the names of the clients' libraries in a reply to FUNCTION LIST.
func LibraryNames(reply []byte) (names []string) {
	all, _ := resp.Elements(reply)
	for _, library := range all {
		if name := libraryName(library); name != sonicLibrary {
			names = append(names, name)
		}
	}
	return names
}

// WithoutSonic removes Sonic's own library from a reply to FUNCTION LIST.
func WithoutSonic(reply []byte) []byte {
	all, err := resp.Elements(reply)
	if err != nil {
		return reply
	}
	var kept []byte
	n := 0
	for _, library := range all {
		if libraryName(library) != sonicLibrary {
			kept = append(kept, library...)
			n++
		}
	}
	if n == len(all) {
		return reply
	}
	return append(resp.AppendHeader(nil, reply[0], n), kept...)
}

func libraryName(library []byte) string {
	fields, _ := resp.Elements(library)
	for i := 0; i+1 < len(fields); i += 2 {
		if string(resp.Text(fields[i])) == "library_name" {
			return string(resp.Text(fields[i+1]))
		}
	}
	return ""
}
