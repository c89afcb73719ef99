package zones

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// version is the version of an effect: its id and its zone.
type version struct {
	id   wire.ID
	zone string
}

func (v version) before(o version) bool {
	if c := v.id.Compare(o.id); c != 0 {
		return c < 0
	}
	return v.zone < o.zone
}

// newest returns the newest version that the zone knows of each key. Keys without a known version
// are left out: the library removes a version once every zone has applied later effects. newest
// scans the whole hash of versions of their shards in steps, because there is no other way to find
// removed elements.
func (z *Zone) newest(ctx context.Context, keys map[Key]struct{}) (map[Key]version, error) {
	found := map[Key]version{}
	shards := map[int]bool{}
	for key := range keys {
		shards[z.shardOf(key.Name)] = true
	}
	err := z.scan(ctx, slices.Collect(maps.Keys(shards)), "sonic_versions", nil, func(_ int, fields []string) error {
		return z.addNewest(found, keys, fields)
	})
	return found, err
}

// addNewest adds the versions of keys: field, version, field, version.
func (z *Zone) addNewest(found map[Key]version, keys map[Key]struct{}, fields []string) error {
	for i := 0; i+1 < len(fields); i += 2 {
		key, ok := keyOf(fields[i])
		if _, wanted := keys[key]; !ok || !wanted {
			continue
		}
		v, err := z.versionOf(fields[i+1])
		if err != nil {
			return err
		}
		if had, known := found[key]; !known || had.before(v) {
			found[key] = v
		}
	}
	return nil
}

// keyOf reads a field of the hash of versions: k<db>:<key>, x<db>:<key>, t<type><db>:<key> or
// e<db>:<length of key>:<key><element>.
func keyOf(field string) (Key, bool) {
	if field == "" {
		return Key{}, false
	}
	rest := field[1:]
	if field[0] == 't' && rest != "" {
		rest = rest[1:]
	}
	number, name, found := strings.Cut(rest, ":")
	db, err := strconv.Atoi(number)
	if !found || err != nil {
		return Key{}, false
	}
	if field[0] == 'e' {
		number, rest, found = strings.Cut(name, ":")
		length, err := strconv.Atoi(number)
		if !found || err != nil || length < 0 || length > len(rest) {
			return Key{}, false
		}
		name = rest[:length]
	}
	return Key{db, name}, true
}

// versionOf reads a stored version: the id, "@zone" unless it is this zone, and optionally a space
// and data that depend on the field.
func (z *Zone) versionOf(text string) (version, error) {
	text, _, _ = strings.Cut(text, " ")
	id, zone, found := strings.Cut(text, "@")
	if !found {
		zone = z.name
	}
	parsed, err := wire.ParseID(id)
	if err != nil {
		return version{}, fmt.Errorf("the versions of zone %s: %w", z.name, err)
	}
	return version{parsed, zone}, nil
}
