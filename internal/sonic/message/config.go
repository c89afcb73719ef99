package message

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// Config says in short what has to be equal in the configurations of all zones: name=digest for each part, with spaces between. parts are lists whose
// order does not matter, by names without '=' and spaces.
func Config(parts map[string][]string) string {
	var words []string
	for name, list := range parts {
		list = slices.Sorted(slices.Values(list))
		sum := sha256.Sum256([]byte(strings.Join(list, "\n")))
		words = append(words, name+"="+hex.EncodeToString(sum[:4]))
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// Differing returns the names of the parts that differ between two configurations. One that only one of them tells does not differ: the other
// may be of an older or a newer version.
func Differing(a, b string) []string {
	told := map[string]string{}
	for _, word := range strings.Fields(a) {
		name, digest, _ := strings.Cut(word, "=")
		told[name] = digest
	}
	var names []string
	for _, word := range strings.Fields(b) {
		name, digest, _ := strings.Cut(word, "=")
		if mine, both := told[name]; both && mine != digest {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
