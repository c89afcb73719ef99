package stack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/stack/install"
	"github.com/aviaryhq/aviary/test/stack/process"

	amqp "github.com/rabbitmq/amqp091-go"
)

// rabbitMQPrograms is where Debian keeps the programs themselves; those in PATH are a wrapper that
// insists on the system's user and folders.
const rabbitMQPrograms = "/usr/lib/rabbitmq/bin"

func (s *Stack) rabbitMQService() service {
	return service{
		name:    "rabbitmq",
		fetch:   s.fetchRabbitMQ,
		missing: install.MissingPackage("rabbitmq-server", 35e6, rabbitMQInstalled()),
		start: func(ctx context.Context, dir string, rec *record) error {
			n, err := s.newRabbitMQ(dir, options{})
			if err != nil {
				return err
			}
			defer n.ReleasePorts()
			if err := s.startRecorded(ctx, rec, n); err != nil {
				return err
			}
			rec.Servers = []serverRecord{{URL: n.url(), Dir: n.dir}}
			rec.Env = []string{"RABBITMQ_URL=" + n.url()}
			return nil
		},
		check: func(ctx context.Context, rec *record) error {
			return checkWithRetries(ctx, rec, func(_ context.Context, srv serverRecord) error { return rabbitMQHealthy(srv.URL) })
		},
	}
}

func rabbitMQInstalled() func() error {
	return install.Programs(filepath.Join(rabbitMQPrograms, "rabbitmq-server"), "epmd")
}

func (s *Stack) fetchRabbitMQ(ctx context.Context) error {
	here := rabbitMQInstalled()
	if here() == nil {
		return nil
	}
	if err := s.packages.Debian(ctx, "rabbitmq-server",
		install.Service{Process: "beam.smp", Units: []string{"rabbitmq-server.service"}},
		install.Service{Process: "epmd", Units: []string{"epmd.socket", "epmd.service"}}, // the socket would start it again
	); err != nil {
		return err
	}
	if err := here(); err != nil {
		return fmt.Errorf("installed, but not where Debian puts it: %w", err)
	}
	return nil
}

// RabbitMQ returns the shared RabbitMQ: the one that AVIARY_TEST_RABBITMQ_URL names, else the one
// of this checkout, under the rules of [Pulsar]. Use queues of your own on it.
func RabbitMQ(t testing.TB) *RabbitMQServer {
	t.Helper()
	const variable = "AVIARY_TEST_RABBITMQ_URL"
	if url := os.Getenv(variable); url != "" {
		awaitNamed(t, variable, func(context.Context) error { return rabbitMQHealthy(url) })
		return &RabbitMQServer{url: url}
	}
	rec := shared(t, "rabbitmq")[0]
	return &RabbitMQServer{url: rec.URL, dir: rec.Dir}
}

// PrivateRabbitMQ starts a RabbitMQ that only this test uses, under the rules of [PrivatePulsar].
func PrivateRabbitMQ(t testing.TB, opts ...Option) *RabbitMQServer {
	t.Helper()
	srv := &RabbitMQServer{}
	n := private(t, "rabbitmq", &srv.Server, func(_ context.Context, s *Stack, dir string) (*rabbitMQNode, error) {
		return s.newRabbitMQ(dir, newOptions(opts))
	})
	srv.url, srv.dir = n.url(), n.dir
	return srv
}

// A RabbitMQServer is a running RabbitMQ: shared, given by the environment, or private to a test.
type RabbitMQServer struct {
	process.Server
	url string
	dir string // empty for one given by the environment
}

// URL returns amqp://user:password@host:port/.
func (s *RabbitMQServer) URL() string { return s.url }

// Addr returns the host:port of the URL.
func (s *RabbitMQServer) Addr() string {
	uri, _ := amqp.ParseURI(s.url) // a client has connected with it
	return net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
}

// Name returns a name for a queue or exchange that says which test uses it.
func (s *RabbitMQServer) Name(t testing.TB) string { t.Helper(); return uniqueName(t) }

// Ctl runs rabbitmqctl on the server and returns what it printed:
//
//	srv.Ctl(ctx, "set_vm_memory_high_watermark", "0") // memory alarm: publishers are blocked
//	srv.Ctl(ctx, "eval", "rabbit_misc:version().")
//
// It cannot reach a server that the environment has named, which may be anywhere. On the shared
// one, other tests feel what it does.
func (s *RabbitMQServer) Ctl(ctx context.Context, args ...string) (string, error) {
	if s.dir == "" {
		return "", errors.New("rabbitmqctl needs a server of this checkout: unset AVIARY_TEST_RABBITMQ_URL or use PrivateRabbitMQ")
	}
	env, err := os.ReadFile(filepath.Join(s.dir, "environment"))
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(rabbitMQPrograms, "rabbitmqctl"), append([]string{"--quiet"}, args...)...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), strings.Split(string(env), "\n")...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("rabbitmqctl %s: %w: %s", strings.Join(args, " "), err, process.FirstLine(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}

// WriteDefinitions has the server write what it knows of queues, exchanges and bindings. RabbitMQ
// itself does so up to two seconds after a declaration: a kill before loses a durable queue, too.
// As Ctl, it needs a server of this checkout.
func (s *RabbitMQServer) WriteDefinitions(t testing.TB) {
	t.Helper()
	if _, err := s.Ctl(t.Context(), "eval", "ok = mnesia:sync_log()."); err != nil {
		t.Fatal(err)
	}
}

// rabbitMQHealthy tells whether a client may log in and use the virtual host.
func rabbitMQHealthy(url string) error {
	conn, err := amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(5 * time.Second), Heartbeat: time.Minute})
	if err != nil {
		return err
	}
	return conn.Close()
}

// A rabbitMQNode is how to run one RabbitMQ.
type rabbitMQNode struct {
	options
	dir   string
	tests bool           // only tests use it
	ports []process.Port // AMQP, streams, Erlang distribution, Erlang port mapper
}

func (s *Stack) newRabbitMQ(dir string, o options) (*rabbitMQNode, error) {
	ports, err := process.ReservePorts(s.cache, 4)
	if err != nil {
		return nil, err
	}
	return &rabbitMQNode{options: o, dir: dir, tests: s.tests, ports: ports}, nil
}

func (n *rabbitMQNode) address(i int) string { return fmt.Sprintf("127.0.0.1:%d", n.ports[i].Number) }
func (n *rabbitMQNode) url() string          { return "amqp://guest:guest@" + n.address(0) + "/" }
func (n *rabbitMQNode) Title() string        { return "rabbitmq at " + n.address(0) }
func (n *rabbitMQNode) LogPath() string      { return filepath.Join(n.dir, "logs", "node.log") }
func (n *rabbitMQNode) ReleasePorts()        { process.ReleasePorts(n.ports) }

func (n *rabbitMQNode) WaitHealthy(ctx context.Context, p process.ID) error {
	return waitAnswers(ctx, n, p, func(context.Context) error { return rabbitMQHealthy(n.url()) })
}

// environment keeps the node and its commands inside n.dir, whoever runs them and whatever is
// installed or configured on the machine.
func (n *rabbitMQNode) environment() []string {
	in := func(name string) string { return filepath.Join(n.dir, name) }
	number := func(i int) string { return strconv.Itoa(n.ports[i].Number) }
	flags := "-start_epmd false"
	if n.tests {
		// Schedulers that have nothing to do sleep at once: they would burn the processor that other
		// servers and the tests need.
		flags += " +sbwt none +sbwtdcpu none +sbwtdio none"
	}
	const loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
	return []string{
		"HOME=" + n.dir, // of the cookie that the node and its commands share
		"RABBITMQ_NODENAME=aviary-" + number(0) + "@localhost",
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		"RABBITMQ_NODE_PORT=" + number(0),
		"RABBITMQ_DIST_PORT=" + number(2),
		"RABBITMQ_BASE=" + n.dir,
		"RABBITMQ_MNESIA_BASE=" + in("mnesia"),
		"RABBITMQ_LOG_BASE=" + in("logs"),
		"RABBITMQ_CONFIG_FILE=" + in("rabbitmq.conf"),
		"RABBITMQ_GENERATED_CONFIG_DIR=" + in("generated"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + in("enabled_plugins"),
		"RABBITMQ_PLUGINS_EXPAND_DIR=" + in("plugins"),
		"RABBITMQ_PID_FILE=" + in("pid"),
		// These do not exist; the ones in /etc are not read then.
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + in("advanced.config"),
		"RABBITMQ_CONF_ENV_FILE=" + in("rabbitmq-env.conf"),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=" + loopback,
		"RABBITMQ_CTL_ERL_ARGS=" + loopback,
		"RABBITMQ_CTL_DIST_PORT_MIN=0", "RABBITMQ_CTL_DIST_PORT_MAX=0", // any free one
		// Has the script become the node, as under systemd, instead of waiting beside it: the
		// process id is the node's.
		"RUNNING_UNDER_SYSTEMD=true",
		// The port mapper is a child of ours. Erlang would start one as a daemon that outlives all.
		"ERL_EPMD_PORT=" + number(3), "ERL_EPMD_ADDRESS=127.0.0.1", "ERL_FLAGS=" + flags,
		"ERL_CRASH_DUMP=" + in("logs/erl_crash.dump"),
	}
}

func (n *rabbitMQNode) Start(ctx context.Context, spawn func(process.Command) (process.ID, error)) (process.ID, error) {
	if err := os.MkdirAll(filepath.Join(n.dir, "logs"), 0o755); err != nil {
		return process.ID{}, err
	}
	conf := map[string]string{
		"listeners.tcp.1":        n.address(0),
		"stream.listeners.tcp.1": n.address(1),
		"log.console":            "true",
		"log.console.level":      "info",
		"log.file":               "false",
	}
	plugins := "[rabbitmq_stream].\n"
	if found, _ := filepath.Glob(filepath.Join(rabbitMQPrograms, "../lib/rabbitmq_server-*/plugins/rabbitmq_stream-*")); len(found) == 0 {
		// Before 3.9. Its settings are unknown without it, which ends the node.
		delete(conf, "stream.listeners.tcp.1")
		plugins = "[].\n"
	}
	maps.Copy(conf, n.conf)
	for name, text := range map[string]string{
		"rabbitmq.conf":   rewriteConf("", conf),
		"enabled_plugins": plugins,
		"environment":     strings.Join(n.environment(), "\n"),
	} {
		if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
			return process.ID{}, err
		}
	}
	epmd, err := exec.LookPath("epmd")
	if err != nil {
		return process.ID{}, err
	}
	mapper, err := spawn(process.Command{
		Path: epmd, Args: []string{"-port", strconv.Itoa(n.ports[3].Number), "-address", "127.0.0.1"},
		Dir: n.dir, Log: filepath.Join(n.dir, "logs", "epmd.log"), Keep: process.PortLocks(n.ports[3:]),
	})
	if err != nil {
		return process.ID{}, err
	}
	// The node gives up at once when it finds no mapper.
	if err := process.Poll(ctx, 5*time.Millisecond, func() (bool, error) {
		if !mapper.Alive() {
			return false, errors.New("epmd " + errEnded.Error())
		}
		conn, err := net.Dial("tcp", n.address(3))
		if err == nil {
			err = conn.Close()
		}
		return err == nil, nil
	}); err != nil {
		return process.ID{}, err
	}
	return spawn(process.Command{
		Path: filepath.Join(rabbitMQPrograms, "rabbitmq-server"), Dir: n.dir, Log: n.LogPath(),
		Env: n.environment(), Keep: process.PortLocks(n.ports[:3]),
	})
}
