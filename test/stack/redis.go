package stack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/test/stack/install"
	"github.com/aviaryhq/aviary/test/stack/process"
)

// oldestRedis is the first major version that has functions and streams as Sonic needs them.
const oldestRedis = 7

func (s *Stack) redisService() service {
	return service{
		name:    "redis",
		fetch:   s.fetchRedis,
		missing: missingRedis(),
		start: func(ctx context.Context, dir string, rec *record) error {
			n, err := s.newRedis(dir, s.cfg.RedisPort, options{conf: s.cfg.RedisConf})
			if err != nil {
				return err
			}
			defer n.ReleasePorts()
			if err := s.startRecorded(ctx, rec, n); err != nil {
				return err
			}
			rec.Servers = []serverRecord{n.serverRecord()}
			rec.Env = []string{"REDIS_URL=" + n.url()}
			return nil
		},
		check: checkRedis,
	}
}

func missingRedis() install.MissingFunc {
	return install.MissingPackage("redis-server", 1.4e6, install.Programs("redis-server"))
}

func checkRedis(ctx context.Context, rec *record) error {
	return checkWithRetries(ctx, rec, func(ctx context.Context, srv serverRecord) error { return redisHealthy(ctx, srv.URL) })
}

// fetchRedis installs the server, and with it redis-cli and redis-benchmark of the package
// redis-tools.
func (s *Stack) fetchRedis(ctx context.Context) error {
	if _, err := exec.LookPath("redis-server"); err != nil {
		if err := s.packages.Debian(ctx, "redis-server", install.Service{Process: "redis-server", Units: []string{"redis-server.service"}}); err != nil {
			return err
		}
	}
	out, err := exec.CommandContext(ctx, "redis-server", "--version").Output()
	if err != nil {
		return fmt.Errorf("cannot run redis-server: %w", err)
	}
	return checkRedisVersion(string(out))
}

// checkRedisVersion takes what redis-server --version prints.
func checkRedisVersion(out string) error {
	found := regexp.MustCompile(`v=(\d+)\.\S+`).FindStringSubmatch(out)
	if found == nil {
		return fmt.Errorf("unexpected answer of redis-server --version: %s", process.FirstLine(out))
	}
	if major, err := strconv.Atoi(found[1]); err != nil || major < oldestRedis {
		return fmt.Errorf("redis-server is %s: Redis %d.0 or newer is needed", strings.TrimPrefix(found[0], "v="), oldestRedis)
	}
	return nil
}

// Redis returns the shared Redis: the one that AVIARY_TEST_REDIS_URL names, else the one of this
// checkout, under the rules of [Pulsar]. Use keys of your own on it.
func Redis(t testing.TB) *RedisServer {
	t.Helper()
	if srv := redisFromEnvironment(t, "AVIARY_TEST_REDIS_URL"); srv != nil {
		return srv
	}
	return sharedRedises(t, "redis")[0]
}

// PrivateRedis starts a Redis that only this test uses, under the rules of [PrivatePulsar]. It
// forgets everything when it ends, unless Conf has "appendonly": "yes": then [RedisServer.Start]
// finds every write that was replied to before a Kill. "requirepass" sets a password, which is in
// the URL; it has no spaces.
func PrivateRedis(t testing.TB, opts ...Option) *RedisServer {
	t.Helper()
	srv := &RedisServer{}
	n := private(t, "redis", &srv.Server, func(_ context.Context, s *Stack, dir string) (*redisNode, error) {
		return s.newRedis(dir, 0, newOptions(opts))
	})
	srv.url, srv.dir, srv.security = n.url(), n.dir, n.security()
	return srv
}

// redisFromEnvironment returns nil when the environment names no server. A named one must work,
// whether under CI or not.
func redisFromEnvironment(t testing.TB, variable string) *RedisServer {
	t.Helper()
	address := os.Getenv(variable)
	if address == "" {
		return nil
	}
	awaitNamed(t, variable, func(ctx context.Context) error { return redisHealthy(ctx, address) })
	return &RedisServer{url: address}
}

func sharedRedises(t testing.TB, service string) []*RedisServer {
	t.Helper()
	var servers []*RedisServer
	for _, r := range shared(t, service) {
		servers = append(servers, &RedisServer{url: r.URL, dir: r.Dir})
	}
	return servers
}

// A RedisServer is a running Redis: shared, given by the environment, or private to a test.
type RedisServer struct {
	process.Server
	url string
	dir string // empty for one given by the environment

	security RedisSecurity
}

// URL returns redis://host:port, or redis://:password@host:port.
func (s *RedisServer) URL() string { return s.url }

// Addr returns the host:port of the URL.
func (s *RedisServer) Addr() string { return redisOptions(s.url).Addr }

// Dir returns the folder of the server's files: redis.conf, appendonlydir, dump.rdb. It is empty
// for a server that the environment names.
func (s *RedisServer) Dir() string { return s.dir }

// Client returns a client of the database 0 that ends with the test. It sends no command twice.
func (s *RedisServer) Client(t testing.TB) *redis.Client {
	t.Helper()
	client := redis.NewClient(redisOptions(s.url))
	t.Cleanup(func() { _ = client.Close() }) // the test may have closed it
	return client
}

// Name returns a name for keys that says which test uses them.
func (s *RedisServer) Name(t testing.TB) string { t.Helper(); return uniqueName(t) }

// Follow makes the server a replica of another and returns when it has all that the other has. It
// stays one through Kill and Start.
func (s *RedisServer) Follow(t testing.TB, primary *RedisServer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), adminTimeout)
	defer cancel()
	of := redisOptions(primary.url)
	host, port, _ := strings.Cut(of.Addr, ":")
	c := s.Client(t)
	for _, command := range [][]any{
		{"CONFIG", "SET", "masterauth", of.Password}, {"REPLICAOF", host, port}, {"CONFIG", "REWRITE"},
	} {
		if err := c.Do(ctx, command...).Err(); err != nil {
			t.Fatalf("cannot follow %s: %v", of.Addr, err)
		}
	}
	if err := s.awaitSync(ctx, t, primary); err != nil {
		t.Fatalf("%s has not caught up with %s: %v", s.Addr(), of.Addr, err)
	}
}

// Promote makes a replica a primary. It stays one through Kill and Start.
func (s *RedisServer) Promote(t testing.TB) {
	t.Helper()
	c := s.Client(t)
	for _, command := range [][]any{{"REPLICAOF", "NO", "ONE"}, {"CONFIG", "REWRITE"}} {
		if err := c.Do(t.Context(), command...).Err(); err != nil {
			t.Fatalf("cannot promote %s: %v", s.Addr(), err)
		}
	}
}

// awaitSync returns when the replica's link is up and it has applied what the primary had sent at
// some moment after the call.
func (s *RedisServer) awaitSync(ctx context.Context, t testing.TB, primary *RedisServer) error {
	t.Helper()
	replica, of := s.Client(t), primary.Client(t)
	return process.Poll(ctx, 5*time.Millisecond, func() (bool, error) {
		sent, err := replicationInfo(ctx, of)
		if err != nil {
			return false, err
		}
		got, err := replicationInfo(ctx, replica)
		if err != nil {
			return false, err
		}
		if got["master_link_status"] != "up" {
			return false, nil
		}
		want, err1 := strconv.ParseInt(sent["master_repl_offset"], 10, 64)
		have, err2 := strconv.ParseInt(got["slave_repl_offset"], 10, 64)
		return have >= want, errors.Join(err1, err2)
	})
}

func replicationInfo(ctx context.Context, c *redis.Client) (map[string]string, error) {
	text, err := c.Info(ctx, "replication").Result()
	if err != nil {
		return nil, err
	}
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		info[key] = value
	}
	return info, nil
}

// redisOptions are those of a client that does not retry, and gives up with the context.
func redisOptions(address string) *redis.Options {
	o, err := redis.ParseURL(address)
	if err != nil {
		// A client of it says what is wrong.
		o = &redis.Options{Addr: address}
	}
	o.MaxRetries, o.DialerRetries = -1, 1
	o.DialTimeout, o.ReadTimeout, o.ContextTimeoutEnabled = adminTimeout, adminTimeout, true
	return o
}

// redisHealthy tells whether the server takes commands: one that still reads its files answers
// LOADING.
func redisHealthy(ctx context.Context, address string) error {
	o := redisOptions(address)
	// The client would log that nobody listens yet.
	conn, err := (&net.Dialer{Timeout: o.DialTimeout}).DialContext(ctx, "tcp", o.Addr)
	if err != nil {
		return err
	}
	c := redis.NewClient(o)
	return errors.Join(c.Ping(ctx).Err(), c.Close(), conn.Close())
}

// A redisNode is how to run one Redis.
type redisNode struct {
	options
	dir   string
	ports []process.Port // without encryption; with it, if secured

	watches *sentinelOf // nil: it is no Sentinel
}

func (s *Stack) newRedis(dir string, number int, o options) (*redisNode, error) {
	if number != 0 {
		p, err := process.FixedPort(s.cache, number, "-redis.port")
		return &redisNode{options: o, dir: dir, ports: []process.Port{p}}, err
	}
	wanted := 1
	if o.secured {
		wanted++
	}
	ports, err := process.ReservePorts(s.cache, wanted)
	return &redisNode{options: o, dir: dir, ports: ports}, err
}

func (n *redisNode) address() string { return "127.0.0.1:" + strconv.Itoa(n.ports[0].Number) }
func (n *redisNode) Title() string   { return "redis at " + n.address() }
func (n *redisNode) LogPath() string { return filepath.Join(n.dir, "logs", "redis.log") }
func (n *redisNode) ReleasePorts()   { process.ReleasePorts(n.ports) }

func (n *redisNode) url() string {
	u := url.URL{Scheme: "redis", Host: n.address()}
	if password := n.conf["requirepass"]; password != "" {
		u.User = url.UserPassword("", password)
	}
	return u.String()
}

func (n *redisNode) serverRecord() serverRecord { return serverRecord{URL: n.url(), Dir: n.dir} }

func (n *redisNode) WaitHealthy(ctx context.Context, p process.ID) error {
	return waitAnswers(ctx, n, p, func(ctx context.Context) error { return redisHealthy(ctx, n.url()) })
}

func (n *redisNode) Start(_ context.Context, spawn func(process.Command) (process.ID, error)) (process.ID, error) {
	server, err := exec.LookPath("redis-server")
	if err != nil {
		return process.ID{}, err
	}
	// What CONFIG REWRITE has written is kept.
	file := filepath.Join(n.dir, "redis.conf")
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		if err := n.configure(file); err != nil {
			return process.ID{}, err
		}
	}
	args := []string{file}
	if n.watches != nil {
		args = append(args, "--sentinel")
	}
	return spawn(process.Command{Path: server, Args: args, Dir: n.dir, Log: n.LogPath(), Keep: process.PortLocks(n.ports)})
}

func (n *redisNode) configure(file string) error {
	if err := os.MkdirAll(n.dir, 0o755); err != nil {
		return err
	}
	if n.watches != nil {
		return os.WriteFile(file, []byte(n.watches.configuration(n.ports[0].Number, n.dir)), 0o600)
	}
	conf := map[string]string{
		"bind":       "127.0.0.1",
		"port":       strconv.Itoa(n.ports[0].Number),
		"dir":        n.dir,
		"save":       "", // no snapshots by itself
		"appendonly": "no",
		// A replica would wait five seconds for others to copy at the same time.
		"repl-diskless-sync-delay": "0",
		// DEBUG SLEEP and the like, from this machine.
		"enable-debug-command": "local",
	}
	if n.secured {
		if err := n.secure(conf); err != nil {
			return err
		}
	}
	maps.Copy(conf, n.conf)
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(conf)) {
		value := conf[key]
		if value == "" {
			value = `""`
		}
		text.WriteString(key + " " + value + "\n")
	}
	return os.WriteFile(file, []byte(text.String()), 0o600)
}
