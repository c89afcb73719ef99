package replies

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// IsSubscription reports whether a push is a reply to SUBSCRIBE or one of the commands like it.
func IsSubscription(push []byte) bool {
	word := resp.FirstWord(push)
	return bytes.HasSuffix(word, []byte("subscribe"))
}

// IsMessage reports whether an array of RESP2 is a Pub/Sub message.
func IsMessage(push []byte) bool {
	switch string(resp.FirstWord(push)) {
	case "message", "pmessage", "smessage":
		return true
	}
	return false
}
