package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/aviaryhq/aviary/test/stack/process"
	"github.com/aviaryhq/aviary/test/stack/pulsaradmin"
)

// PulsarProcesses is a Pulsar whose ZooKeeper, bookie and broker are processes of their own, started
// by bin/pulsar, as in production. It is private to a test.
type PulsarProcesses struct {
	PulsarServer
	// BookieURL is the URL of the bookie's HTTP server, http://host:port.
	BookieURL string
	// BrokerLog and BookieLog begin with all flags of their JVM, as -XX:+PrintFlagsFinal prints them.
	BrokerLog, BookieLog string
}

// PrivatePulsarProcesses starts one. The distribution's folder conf is copied, configure changes the
// copy, and then addresses and folders are set. The JVMs' memory is small, whatever conf says.
func PrivatePulsarProcesses(t testing.TB, configure func(conf string) error) *PulsarProcesses {
	t.Helper()
	srv := &PulsarProcesses{}
	p := private(t, "pulsar", &srv.Server, func(ctx context.Context, s *Stack, dir string) (*pulsarProcesses, error) {
		return s.newPulsarProcesses(ctx, dir, configure)
	})
	srv.url, srv.admin, srv.BookieURL = p.url(), pulsaradmin.New(p.adminURL(), ""), p.bookieURL()
	srv.BrokerLog, srv.BookieLog = p.LogPath(), p.logPath("bookie")
	return srv
}

type pulsarProcesses struct {
	dir   string         // what bin/pulsar takes for the distribution
	ports []process.Port // service, admin, ZooKeeper, bookie, bookie's HTTP
}

func (s *Stack) newPulsarProcesses(ctx context.Context, dir string, configure func(conf string) error) (*pulsarProcesses, error) {
	home, err := s.pulsarHome(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"bin", "conf"} { // bin/pulsar finds the rest beside itself
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(home, name))); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"lib", "instances"} {
		if err := os.Symlink(filepath.Join(home, name), filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	if err := configure(filepath.Join(dir, "conf")); err != nil {
		return nil, err
	}
	p := &pulsarProcesses{dir: dir}
	if p.ports, err = process.ReservePorts(s.cache, 5); err != nil {
		return nil, err
	}
	for file, changes := range p.settings() {
		path := filepath.Join(dir, "conf", file)
		original, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, []byte(rewriteConf(string(original), changes)), 0o644)
		}
		if err != nil {
			p.ReleasePorts()
			return nil, err
		}
	}
	return p, nil
}

func (p *pulsarProcesses) ReleasePorts()           { process.ReleasePorts(p.ports) }
func (p *pulsarProcesses) port(i int) string       { return strconv.Itoa(p.ports[i].Number) }
func (p *pulsarProcesses) url() string             { return "pulsar://127.0.0.1:" + p.port(0) }
func (p *pulsarProcesses) adminURL() string        { return "http://127.0.0.1:" + p.port(1) }
func (p *pulsarProcesses) metadata() string        { return "zk:127.0.0.1:" + p.port(2) }
func (p *pulsarProcesses) bookieURL() string       { return "http://127.0.0.1:" + p.port(4) }
func (p *pulsarProcesses) Title() string           { return "Pulsar in processes at " + p.url() }
func (p *pulsarProcesses) logPath(n string) string { return filepath.Join(p.dir, "logs", n+".log") }
func (p *pulsarProcesses) LogPath() string         { return p.logPath("broker") }

// settings are those of this machine, by file.
func (p *pulsarProcesses) settings() map[string]map[string]string {
	return map[string]map[string]string{
		"zookeeper.conf": {
			"dataDir": filepath.Join(p.dir, "zookeeper"), "clientPort": p.port(2), "clientPortAddress": "127.0.0.1",
			"admin.enableServer":        "false",
			"metricsProvider.className": "org.apache.zookeeper.metrics.impl.NullMetricsProvider",
		},
		"bookkeeper.conf": {
			"metadataServiceUri": "metadata-store:" + p.metadata(), "bookiePort": p.port(3),
			"advertisedAddress": "127.0.0.1", "allowLoopback": "true",
			"journalDirectories": filepath.Join(p.dir, "journal"), "ledgerDirectories": filepath.Join(p.dir, "ledgers"),
			"httpServerEnabled": "true", "httpServerHost": "127.0.0.1", "httpServerPort": p.port(4),
		},
		"broker.conf": {
			"metadataStoreUrl": p.metadata(), "clusterName": "processes",
			"brokerServicePort": p.port(0), "webServicePort": p.port(1),
			"advertisedAddress": "127.0.0.1", "bindAddress": "127.0.0.1",
		},
	}
}

// environment has the JVMs begin their logs with their flags, as PrivatePulsarProcesses says.
func (p *pulsarProcesses) environment(memory string) []string {
	return []string{
		"PULSAR_MEM=" + memory, "BOOKIE_MEM=" + memory, "PULSAR_EXTRA_OPTS=-XX:+PrintFlagsFinal" + quickStart,
		"PULSAR_LOG_DIR=" + filepath.Join(p.dir, "logs"),
	}
}

// Start starts ZooKeeper, writes a cluster's metadata to it, and starts bookie and broker.
func (p *pulsarProcesses) Start(ctx context.Context, spawn func(process.Command) (process.ID, error)) (process.ID, error) {
	program := filepath.Join(p.dir, "bin", "pulsar")
	run := func(name, memory string) (process.ID, error) {
		return spawn(process.Command{
			Path: program, Args: []string{name}, Dir: p.dir, Log: p.logPath(name),
			Env: p.environment(memory), Keep: process.PortLocks(p.ports),
		})
	}
	if _, err := run("zookeeper", "-Xmx128m"); err != nil {
		return process.ID{}, err
	}
	job := process.Job{Dir: p.dir, Env: p.environment("-Xmx128m")}
	out, err := job.Run(ctx, program, "initialize-cluster-metadata", "--cluster", "processes",
		"--metadata-store", p.metadata(), "--configuration-store", p.metadata(),
		"--web-service-url", p.adminURL(), "--broker-service-url", p.url())
	if err != nil {
		return process.ID{}, fmt.Errorf("cannot write the cluster's metadata: %w: %s", err, process.LastLine(out))
	}
	if _, err := run("bookie", "-Xmx256m -XX:MaxDirectMemorySize=256m"); err != nil {
		return process.ID{}, err
	}
	return run("broker", "-Xmx384m -XX:MaxDirectMemorySize=256m")
}

func (p *pulsarProcesses) WaitHealthy(ctx context.Context, id process.ID) error {
	return waitAnswers(ctx, p, id, pulsaradmin.New(p.adminURL(), "").Healthy)
}
