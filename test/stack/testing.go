package stack

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/stack/process"
	"github.com/aviaryhq/aviary/test/stack/pulsaradmin"
)

const (
	// setupTimeout covers a first download, too.
	setupTimeout = 10 * time.Minute
	adminTimeout = time.Minute
)

// An Option changes how a private server is set up.
type Option func(*options)

// options are what private servers can be told. Each kind of server takes those that have a meaning
// for it.
type options struct {
	conf       map[string]string
	memory     string
	token      string
	advertised string
	listeners  map[string]string // more of Pulsar, by name: host:port
	secured    bool
}

func newOptions(opts []Option) options {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// Conf sets keys of the server's configuration: Pulsar's standalone.conf, Kafka's
// server.properties, rabbitmq.conf, redis.conf. It wins over the defaults of this package.
func Conf(conf map[string]string) Option {
	return func(o *options) {
		if o.conf == nil {
			o.conf = make(map[string]string)
		}
		maps.Copy(o.conf, conf)
	}
}

// Advertise makes the server tell clients to connect to addr, host:port, where a proxy of the test
// listens. Pulsar says so to those that ask for the listener "proxied", Kafka to those that come
// through [KafkaServer.Upstream]; all others are sent to the server itself. RabbitMQ advertises
// nothing and needs none of it.
func Advertise(addr string) Option {
	return func(o *options) { o.advertised = addr }
}

// advertiseAs makes Pulsar tell clients that ask for the listener of that name to connect to addr.
func advertiseAs(listener, addr string) Option {
	return func(o *options) {
		if o.listeners == nil {
			o.listeners = make(map[string]string)
		}
		o.listeners[listener] = addr
	}
}

// Memory sets the JVM's memory flags of Pulsar or Kafka, "-Xmx512m" for instance. Default:
// PULSAR_MEM from the environment, else "-Xms256m -Xmx1g -XX:MaxDirectMemorySize=1g"; for Kafka
// KAFKA_MEM, else "-Xmx512m".
func Memory(flags string) Option {
	return func(o *options) { o.memory = flags }
}

// Token sets the bearer token of admin requests, for a Pulsar that [Conf] gave authentication.
func Token(token string) Option {
	return func(o *options) { o.token = token }
}

// Pulsar returns the shared Pulsar: the one that AVIARY_TEST_PULSAR_URL and
// AVIARY_TEST_PULSAR_ADMIN_URL name, else the one of this checkout, started if need be and shared
// by all test packages. It is left running, for the next test run to find it warm; "stack down"
// stops it. Use a namespace of your own on it.
//
// If no server can be had, the test fails when the environment variable CI is set and is skipped
// elsewhere.
func Pulsar(t testing.TB) *PulsarServer {
	t.Helper()
	if srv := fromEnvironment(t, "AVIARY_TEST_PULSAR_URL", "AVIARY_TEST_PULSAR_ADMIN_URL"); srv != nil {
		return srv
	}
	return sharedPulsars(t, "pulsar")[0]
}

// PrivatePulsar starts a Pulsar that only this test uses: it may kill, pause and restart it. The
// test's end stops it and deletes its data; should the test binary die, the kernel kills the server
// with it.
//
// If Java or the distribution cannot be had, the test fails when the environment variable CI is set
// and is skipped elsewhere. A server that does not start, perhaps for the options' sake, always
// fails it.
func PrivatePulsar(t testing.TB, opts ...Option) *PulsarServer {
	t.Helper()
	return privatePulsars(t, []string{"standalone"}, opts)[0]
}

// fromEnvironment returns nil when the environment names no server. A named one must work, whether
// under CI or not.
func fromEnvironment(t testing.TB, urlVar, adminVar string) *PulsarServer {
	t.Helper()
	url, adminURL := os.Getenv(urlVar), os.Getenv(adminVar)
	if url == "" && adminURL == "" {
		return nil
	}
	if url == "" || adminURL == "" {
		t.Fatalf("set both %s and %s, or none", urlVar, adminVar)
	}
	srv := &PulsarServer{url: url, admin: pulsaradmin.New(adminURL, "")}
	awaitNamed(t, adminVar, srv.admin.Healthy)
	return srv
}

// shared returns the servers of a service that outlives this test.
func shared(t testing.TB, service string) []serverRecord {
	t.Helper()
	skipIfShort(t)
	s, err := New(Config{Log: os.Stderr})
	if err != nil {
		Unavailable(t, service, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	servers, err := s.sharedServers(ctx, service)
	if err != nil {
		Unavailable(t, service, err)
	}
	return servers
}

// sharedServers takes what runs, whatever its settings, and starts the service otherwise.
func (s *Stack) sharedServers(ctx context.Context, service string) ([]serverRecord, error) {
	picked, err := s.pick([]string{service})
	if err != nil {
		return nil, err
	}
	rec, err := s.loadRecord(service)
	if err != nil {
		return nil, err
	}
	if rec == nil || len(rec.Env) == 0 || !rec.alive() || picked[0].check(ctx, rec) != nil {
		if _, err := s.Up(ctx, service); err != nil {
			return nil, err
		}
		if rec, err = s.loadRecord(service); err != nil {
			return nil, err
		}
		if rec == nil {
			return nil, errors.New("someone took it down right after its start")
		}
	}
	return rec.Servers, nil
}

func sharedPulsars(t testing.TB, service string) []*PulsarServer {
	t.Helper()
	var servers []*PulsarServer
	for _, r := range shared(t, service) {
		servers = append(servers, &PulsarServer{url: r.URL, admin: pulsaradmin.New(r.AdminURL, "")})
	}
	return servers
}

// awaitNamed waits for a server that the environment names: it must work, whether under CI or not.
func awaitNamed(t testing.TB, variable string, ask func(context.Context) error) {
	t.Helper()
	skipIfShort(t)
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	var last error
	if err := process.Poll(ctx, 100*time.Millisecond, func() (bool, error) {
		last = ask(ctx)
		return last == nil, nil
	}); err != nil {
		t.Fatalf("the server that %s names does not answer: %v", variable, last)
	}
}

// privatePulsars starts one server per cluster name, at the same time, each with its options.
func privatePulsars(t testing.TB, clusters []string, opts ...[]Option) []*PulsarServer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	s := privateStack(ctx, t, "pulsar")
	var servers []*PulsarServer
	for i, cluster := range clusters {
		b, err := s.newBroker(ctx, cluster, s.privateFolder(t, "pulsar"), 0, 0)
		if err != nil {
			Unavailable(t, "pulsar", err)
		}
		b.options = newOptions(opts[i])
		srv := &PulsarServer{url: b.url(), admin: pulsaradmin.New(b.adminURL(), b.token)}
		own(t, &srv.Server, b)
		servers = append(servers, srv)
	}
	errs := make(chan error, len(servers))
	for _, srv := range servers {
		go func() { errs <- srv.Start(ctx) }()
	}
	var err error
	for range servers {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		t.Fatalf("cannot start a private pulsar: %v", err)
	}
	return servers
}

// skipIfShort skips a test that needs a server when the flag -short is set, as make check does.
func skipIfShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a server")
	}
}

// Unavailable ends a test whose server, or whatever else it needs, cannot be had: it fails when the
// environment variable CI is set and is skipped elsewhere. A disk that is full always fails it.
func Unavailable(t testing.TB, service string, err error) {
	t.Helper()
	if os.Getenv("CI") != "" || errors.Is(err, errSpace) {
		t.Fatalf("no %s: %v", service, err)
	}
	fmt.Fprintf(os.Stderr, "\n*** SKIPPED %s: no %s: %v\n*** (it would fail with CI=1)\n\n", t.Name(), service, err)
	t.Skipf("no %s: %v", service, err)
}

// privateDir returns a folder named after this process, which tells a later run whether it is still
// needed.
func (s *Stack) privateDir() (string, error) {
	self, err := process.Identify(os.Getpid())
	if err != nil {
		return "", err
	}
	parent := filepath.Join(s.dir, "private")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	return os.MkdirTemp(parent, fmt.Sprintf("%d-%d-", self.PID, self.Start))
}

// sweepPrivate deletes what test binaries that died have left. Failing to is harmless: the next one
// tries again.
func (s *Stack) sweepPrivate() {
	dirs, _ := filepath.Glob(filepath.Join(s.dir, "private", "*-*-*"))
	for _, dir := range dirs {
		parts := strings.SplitN(filepath.Base(dir), "-", 3)
		pid, err1 := strconv.Atoi(parts[0])
		start, err2 := strconv.ParseUint(parts[1], 10, 64)
		if err1 == nil && err2 == nil && !(process.ID{PID: pid, Start: start}).Alive() {
			_ = os.RemoveAll(dir)
		}
	}
}

// uniqueName returns a name for a namespace or topic that says which test made it.
func uniqueName(t testing.TB) string {
	t.Helper()
	clean := strings.Map(func(r rune) rune {
		if r < 128 && (r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') {
			return r
		}
		return '-'
	}, t.Name())
	if len(clean) > 40 {
		clean = clean[:40]
	}
	var random [5]byte
	_, _ = rand.Read(random[:]) // never fails
	return strings.ToLower(clean) + "-" + hex.EncodeToString(random[:])
}

// Namespace creates a namespace public/<unique> and deletes it, with all topics, when the test
// ends. Its topics keep everything: without that a broker may delete what no subscription waits
// for, whenever it begins a new ledger, and a test that subscribes at its end would count too
// little.
func (s *PulsarServer) Namespace(t testing.TB) string {
	t.Helper()
	ns := "public/" + uniqueName(t)
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	if err := s.admin.Do(ctx, http.MethodPut, "/admin/v2/namespaces/"+ns, nil, nil); err != nil {
		t.Fatalf("cannot create namespace %s: %v", ns, err)
	}
	if err := s.keepAll(ctx, ns); err != nil {
		t.Fatalf("cannot set the retention of namespace %s: %v", ns, err)
	}
	t.Cleanup(func() { s.cleanNamespace(t, ns) })
	return ns
}

// keepAll has the cluster keep everything that is stored in a namespace.
func (s *PulsarServer) keepAll(ctx context.Context, ns string) error {
	all := map[string]int{"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
	return s.admin.Do(ctx, http.MethodPost, "/admin/v2/namespaces/"+ns+"/retention", all, nil)
}

func (s *PulsarServer) cleanNamespace(t testing.TB, ns string) {
	t.Helper()
	if !s.Reachable() {
		return // its data goes with the server
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	if err := s.admin.DeleteNamespace(ctx, ns); err != nil {
		t.Logf("cannot delete namespace %s: %v", ns, err)
	}
}

// Topic creates a topic in a namespace and returns its full name, persistent://...; without
// partitions if partitions is 0. It goes with its namespace.
func (s *PulsarServer) Topic(t testing.TB, ns string, partitions int) string {
	t.Helper()
	topic := "persistent://" + ns + "/" + uniqueName(t)
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	if err := s.admin.CreateTopic(ctx, topic, partitions); err != nil {
		t.Fatalf("cannot create topic %s: %v", topic, err)
	}
	return topic
}

// Stats returns the statistics of a topic, partitioned or not.
func (s *PulsarServer) Stats(t testing.TB, topic string) pulsaradmin.TopicStats {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	st, err := s.admin.Stats(ctx, topic)
	if err != nil {
		t.Fatalf("cannot get stats of %s: %v", topic, err)
	}
	return st
}

// Unload closes a topic on the broker: its clients are disconnected and come back.
func (s *PulsarServer) Unload(t testing.TB, topic string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	if err := s.admin.Do(ctx, http.MethodPut, pulsaradmin.TopicPath(topic)+"/unload", nil, nil); err != nil {
		t.Fatalf("cannot unload %s: %v", topic, err)
	}
}

// Terminate closes a topic for publishing for good.
func (s *PulsarServer) Terminate(t testing.TB, topic string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	n, err := s.admin.Partitions(ctx, topic)
	if err != nil {
		t.Fatalf("cannot terminate %s: %v", topic, err)
	}
	path := pulsaradmin.TopicPath(topic) + "/terminate"
	if n > 0 {
		path += "/partitions"
	}
	if err := s.admin.Do(ctx, http.MethodPost, path, nil, nil); err != nil {
		t.Fatalf("cannot terminate %s: %v", topic, err)
	}
}
