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

// PushWithoutStateKeys removes state keys from a push that may name some. It returns nil if nothing
// is left.
func PushWithoutStateKeys(push []byte) []byte {
	parts := resp.Elements(push)
	if len(parts) < 2 {
		return push
	}
	switch string(resp.Text(parts[0])) {
	case "invalidate":
		keys := WithoutStateKeys(parts[1])
		if string(keys) == "*0\r\n" {
			return nil
		}
		kept := resp.AppendHeader(nil, push[0], 2)
		kept = append(kept, parts[0]...)
		return append(kept, keys...)
	case "message", "pmessage":
		if isStateNotification(resp.Text(parts[len(parts)-2]), resp.Text(parts[len(parts)-1])) {
			return nil
		}
	}
	return push
}

// isStateNotification reports whether a message is a notification of a state key:
// __keyspace@DB__:KEY with the event, or __keyevent@DB__:EVENT with the key.
func isStateNotification(channel, message []byte) bool {
	if bytes.HasPrefix(channel, []byte("__keyevent@")) {
		return state.IsKey(message)
	}
	_, key, found := bytes.Cut(channel, []byte("__:"))
	return found && bytes.HasPrefix(channel, []byte("__keyspace@")) && state.IsKey(key)
}
