package zones

import (
	"strconv"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
)

// texts reads the texts of a list.
func texts(v *redislib.Values) (words []string) {
	for v.More() {
		words = append(words, v.Text())
	}
	return words
}

// readStep reads the reply to a step of a scan: the cursor of the next step, and a list of texts.
func readStep(reply any, err error) (cursor string, list []string, _ error) {
	v := redislib.ValuesOf(reply, err)
	return v.Text(), texts(v.List()), v.Err()
}

// readReached reads zone, id, zone, id.
func readReached(v *redislib.Values) Reached {
	at := Reached{}
	for v.More() {
		zone := v.Text()
		at[zone] = v.ID()
	}
	return at
}

// readDigests reads the reply of sonic_digests.
func readDigests(reply any, err error) (at Reached, found []entry, _ error) {
	v := redislib.ValuesOf(reply, err)
	at = readReached(v.List())
	for list := v.List(); list.More(); {
		e := entry{list.Text(), Value{Type: list.Text(), Digest: list.Text(), Expires: -1}}
		if expires := list.Text(); expires != "" {
			if e.value.Expires, err = strconv.ParseInt(expires, 10, 64); err != nil {
				list.Fail("%w", err)
			}
		}
		e.value.Policy = list.Text()
		found = append(found, e)
	}
	return at, found, v.Err()
}
