package zones

import (
	"errors"
	"slices"
	"strconv"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// errReply says that a reply does not have the expected form.
var errReply = errors.New("an unexpected reply of the library")

func listOf(reply any, n int) ([]any, error) {
	list, ok := reply.([]any)
	if !ok || len(list) != n {
		return nil, errReply
	}
	return list, nil
}

func texts(reply any) ([]string, error) {
	list, ok := reply.([]any)
	if !ok {
		return nil, errReply
	}
	words := make([]string, len(list))
	for i, v := range list {
		if words[i], ok = v.(string); !ok {
			return nil, errReply
		}
	}
	return words, nil
}

// stepOf reads the reply to a step of a scan: the cursor of the next step, and a list of texts.
func stepOf(reply any) (cursor string, list []string, err error) {
	step, err := listOf(reply, 2)
	if err != nil {
		return "", nil, err
	}
	cursor, ok := step[0].(string)
	if !ok {
		return "", nil, errReply
	}
	list, err = texts(step[1])
	return cursor, list, err
}

func reachedOf(reply any) (Reached, error) {
	words, err := texts(reply)
	if err != nil || len(words)%2 != 0 {
		return nil, errReply
	}
	at := Reached{}
	for i := 0; i < len(words); i += 2 {
		if at[words[i]], err = wire.ParseID(words[i+1]); err != nil {
			return nil, err
		}
	}
	return at, nil
}

func entriesOf(reply any) ([]entry, error) {
	words, err := texts(reply)
	if err != nil || len(words)%5 != 0 {
		return nil, errReply
	}
	var found []entry
	for w := range slices.Chunk(words, 5) {
		v := Value{Type: w[1], Digest: w[2], Expires: -1, Policy: w[4]}
		if w[3] != "" {
			if v.Expires, err = strconv.ParseInt(w[3], 10, 64); err != nil {
				return nil, errReply
			}
		}
		found = append(found, entry{w[0], v})
	}
	return found, nil
}

// digestsOf reads the reply to a call of sonic_digests.
func digestsOf(reply any) (Reached, []entry, error) {
	list, err := listOf(reply, 2)
	if err != nil {
		return nil, nil, err
	}
	at, err := reachedOf(list[0])
	if err != nil {
		return nil, nil, err
	}
	found, err := entriesOf(list[1])
	return at, found, err
}
