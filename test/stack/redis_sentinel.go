package stack

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// sentinelOf is what a Sentinel watches.
type sentinelOf struct {
	master  string
	primary string // host:port
	quorum  int
}

// PrivateSentinels starts Sentinels that only this test uses, under the rules of [PrivateRedis],
// and has them watch primary under the name master. Half of them and one more must agree that it is
// unavailable, for half a second, before they promote a replica of it. They know the replicas that
// it has when it is asked, at once and then each second, so have these follow it before.
func PrivateSentinels(t testing.TB, master string, primary *RedisServer, count int) []*RedisServer {
	t.Helper()
	var all []*RedisServer
	for range count {
		srv := &RedisServer{}
		n := private(t, "redis", &srv.Server, func(_ context.Context, s *Stack, dir string) (*redisNode, error) {
			n, err := s.newRedis(dir, 0, options{})
			if err == nil {
				n.watches = &sentinelOf{master, primary.Addr(), count/2 + 1}
			}
			return n, err
		})
		srv.url, srv.dir = n.url(), n.dir
		all = append(all, srv)
	}
	ctx, cancel := context.WithTimeout(t.Context(), adminTimeout)
	defer cancel()
	for _, srv := range all {
		if err := srv.awaitSentinels(ctx, t, master, count-1); err != nil {
			t.Fatalf("the Sentinels have not found each other: %v", err)
		}
	}
	return all
}

// awaitSentinels returns when the Sentinel knows so many others, and a replica.
func (s *RedisServer) awaitSentinels(ctx context.Context, t testing.TB, master string, others int) error {
	t.Helper()
	c := redis.NewSentinelClient(redisOptions(s.url))
	defer func() { _ = c.Close() }()
	return process.Poll(ctx, 50*time.Millisecond, func() (bool, error) {
		state, err := c.Master(ctx, master).Result()
		return state["num-other-sentinels"] == strconv.Itoa(others) && state["num-slaves"] != "0", err
	})
}

// configuration is what the file of a Sentinel says. It writes to it itself.
func (s *sentinelOf) configuration(port int, dir string) string {
	host, number, _ := net.SplitHostPort(s.primary)
	return fmt.Sprintf(`bind 127.0.0.1
port %d
dir %q
sentinel monitor %[3]s %s %s %d
sentinel down-after-milliseconds %[3]s 500
sentinel failover-timeout %[3]s 5000
`, port, dir, s.master, host, number, s.quorum)
}
