package replies

import (
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// WithoutPasswords removes the keys that hold passwords from a reply to CONFIG GET, as if Redis did
// not know them.
func WithoutPasswords(reply []byte) []byte {
	if len(reply) == 0 || reply[0] != '*' && reply[0] != '%' {
		return reply
	}
	all := resp.Elements(reply)
	var kept []byte
	pairs := 0
	for i := 0; i+1 < len(all); i += 2 {
		switch string(resp.Text(all[i])) {
		case "requirepass", "masterauth", "tls-key-file-pass", "tls-client-key-file-pass":
			continue
		}
		kept = append(append(kept, all[i]...), all[i+1]...)
		pairs++
	}
	if reply[0] == '*' {
		pairs *= 2
	}
	return append(resp.AppendHeader(nil, reply[0], pairs), kept...)
}
