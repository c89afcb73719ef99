package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// Config returns digests of the settings that must be equal in all zones, as "name=digest
// name=digest". parts holds the settings by name: lists whose order does not matter. Names contain
// neither '=' nor spaces.
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

// Differing returns the names of the parts that differ between two results of Config. A part that
// only one of them contains does not count: the other may come from an older or a newer version.
func Differing(a, b string) []string {
	digests := map[string]string{}
	for _, word := range strings.Fields(a) {
		name, digest, _ := strings.Cut(word, "=")
		digests[name] = digest
	}
	var names []string
	for _, word := range strings.Fields(b) {
		name, digest, _ := strings.Cut(word, "=")
		if other, ok := digests[name]; ok && other != digest {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
