package replies

import (
	"regexp"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

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
