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

var (
	redisMode      = regexp.MustCompile(`(?m)^redis_mode:[a-z]+`)
	clusterEnabled = regexp.MustCompile(`(?m)^cluster_enabled:[0-9]+`)
	// The name is as the client wrote it.
	clusterSetting = regexp.MustCompile(`(?i)(\$15\r\ncluster-enabled\r\n)\$3\r\nyes\r\n`)
)

// InfoWithoutCluster makes a reply of a primary of a Redis Cluster to INFO that of a single Redis.
func InfoWithoutCluster(reply []byte) []byte {
	if len(reply) == 0 || reply[0] != '$' && reply[0] != '=' {
		return reply
	}
	text := redisMode.ReplaceAll(resp.Text(reply), []byte("redis_mode:standalone"))
	return withText(reply, clusterEnabled.ReplaceAll(text, []byte("cluster_enabled:0")))
}

// ConfigWithoutCluster does the same for CONFIG GET.
func ConfigWithoutCluster(reply []byte) []byte {
	return clusterSetting.ReplaceAll(reply, []byte("${1}$$2\r\nno\r\n"))
}

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
