package replies

import (
	"bytes"
	"regexp"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

var (
	redisMode      = regexp.MustCompile(`(?m)^redis_mode:[a-z]+`)
	clusterEnabled = regexp.MustCompile(`(?m)^cluster_enabled:[0-9]+`)
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
	const name = "cluster-enabled"
	yes, no := resp.AppendBulk(resp.AppendBulk(nil, name), "yes"), resp.AppendBulk(resp.AppendBulk(nil, name), "no")
	return bytes.Replace(reply, yes, no, 1)
}
