package replies

import (
	"fmt"
	"regexp"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

var (
	connectedClients = regexp.MustCompile(`(?m)^connected_clients:[0-9]+`)
	blockedClients   = regexp.MustCompile(`(?m)^blocked_clients:[0-9]+`)
)

// WithClients sets the numbers of clients in a reply to INFO.
func WithClients(reply []byte, connected, blocked int64) []byte {
	if len(reply) == 0 || reply[0] != '$' && reply[0] != '=' {
		return reply
	}
	text := connectedClients.ReplaceAll(resp.Text(reply), fmt.Appendf(nil, "connected_clients:%d", connected))
	return withText(reply, blockedClients.ReplaceAll(text, fmt.Appendf(nil, "blocked_clients:%d", blocked)))
}

// withText returns a string with another text.
func withText(reply, text []byte) []byte {
	out := resp.AppendHeader(nil, reply[0], len(text))
	return append(append(out, text...), '\r', '\n')
}
