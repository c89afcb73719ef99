package replies

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/proxy/state"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// WithoutStateKeys removes state keys from a list of keys.
func WithoutStateKeys(list []byte) []byte {
	if !bytes.Contains(list, []byte(state.Prefix)) {
		return list
	}
	all := resp.Elements(list)
	kept, size := all[:0], 0
	for _, e := range all {
		if !state.IsKey(resp.Text(e)) {
			kept = append(kept, e)
			size += len(e)
		}
	}
	out := resp.AppendHeader(make([]byte, 0, size+16), list[0], len(kept))
	for _, e := range kept {
		out = append(out, e...)
	}
	return out
}
