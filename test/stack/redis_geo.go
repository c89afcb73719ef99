package stack

import (
	"context"
	"testing"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// redisZones are the zones of the service "redis-geo", as they are in the names of what it prints.
func redisZones() []string { return []string{"A", "B", "C"} }

func (s *Stack) redisGeoService() service {
	return service{
		name:    "redis-geo",
		fetch:   s.fetchRedis,
		missing: missingRedis(),
		start: func(ctx context.Context, dir string, rec *record) error {
			var nodes []*redisNode
			var daemons []process.Daemon
			for _, zone := range redisZones() {
				n, err := s.newRedis(dir+"/"+zone, 0, options{conf: s.cfg.RedisConf})
				if err != nil {
					return err
				}
				defer n.ReleasePorts()
				nodes, daemons = append(nodes, n), append(daemons, n)
			}
			if err := s.startRecorded(ctx, rec, daemons...); err != nil {
				return err
			}
			for i, zone := range redisZones() {
				rec.Servers = append(rec.Servers, nodes[i].serverRecord())
				rec.Env = append(rec.Env, "REDIS_"+zone+"_URL="+nodes[i].url())
			}
			return nil
		},
		check: checkRedis,
	}
}

// A RedisGeo is one Redis in each of three zones. They know nothing of each other.
type RedisGeo struct {
	A, B, C *RedisServer
}

// RedisZones returns the shared ones: those that AVIARY_TEST_REDIS_A_URL, AVIARY_TEST_REDIS_B_URL
// and AVIARY_TEST_REDIS_C_URL name, else those of this checkout, under the rules of [Pulsar].
func RedisZones(t testing.TB) *RedisGeo {
	t.Helper()
	var named []*RedisServer
	for _, zone := range redisZones() {
		if srv := redisFromEnvironment(t, "AVIARY_TEST_REDIS_"+zone+"_URL"); srv != nil {
			named = append(named, srv)
		}
	}
	switch len(named) {
	case 0:
		return newRedisGeo(sharedRedises(t, "redis-geo"))
	case len(redisZones()):
		return newRedisGeo(named)
	}
	t.Fatal("set AVIARY_TEST_REDIS_A_URL, AVIARY_TEST_REDIS_B_URL and AVIARY_TEST_REDIS_C_URL, or none of them")
	return nil
}

// PrivateRedisZones starts one Redis per zone that only this test uses, under the rules of
// [PrivateRedis]. Options apply to all.
func PrivateRedisZones(t testing.TB, opts ...Option) *RedisGeo {
	t.Helper()
	var servers []*RedisServer
	for range redisZones() {
		servers = append(servers, PrivateRedis(t, opts...))
	}
	return newRedisGeo(servers)
}

func newRedisGeo(servers []*RedisServer) *RedisGeo {
	return &RedisGeo{A: servers[0], B: servers[1], C: servers[2]}
}

// All returns the servers in the order of their zones.
func (g *RedisGeo) All() []*RedisServer { return []*RedisServer{g.A, g.B, g.C} }
