package replies

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/proxy/state"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// IsMessage reports whether a push is a Pub/Sub message.
func IsMessage(push []byte) bool {
	switch string(resp.FirstWord(push)) {
	case "message", "pmessage", "smessage":
		return true
	}
	return false
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
