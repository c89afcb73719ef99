package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/test/stack/install"
	"github.com/aviaryhq/aviary/test/stack/process"
	"github.com/aviaryhq/aviary/test/stack/pulsaradmin"
)

const pulsarVersion = "4.0.8"

func pulsarArtifact() install.Artifact {
	return install.Artifact{
		Coordinates: "org.apache.pulsar:pulsar-server-distribution:" + pulsarVersion + ":tar.gz:bin",
		LocalPath:   "org/apache/pulsar/pulsar-server-distribution/" + pulsarVersion,
		File:        "pulsar-server-distribution-" + pulsarVersion + "-bin.tar.gz",
		Folder:      "apache-pulsar-" + pulsarVersion,
		Sha512: "65b769b10696cdfebf7fc5bcdc95dd663702e27051e616c1a13cb100e9127952" +
			"5be35352171befe7b0011176330aab29bd0a6c8a0f2f0646641af46d2e33cbd6",
		Size:     245_494_718,
		Unpacked: 350_000_000,
	}
}

// PulsarHome returns the folder of the unpacked Pulsar distribution and fetches it first if need
// be. Its tools are in bin, for instance bin/pulsar-perf; set PULSAR_LOG_DIR for them.
func PulsarHome(ctx context.Context, log io.Writer) (string, error) {
	s, err := New(Config{Log: log})
	if err != nil {
		return "", err
	}
	return s.pulsarHome(ctx)
}

func (s *Stack) pulsarHome(ctx context.Context) (string, error) {
	return s.packages.Distribution(ctx, pulsarArtifact(), install.Maven)
}

func (s *Stack) pulsarService() service {
	return service{
		name:    "pulsar",
		fetch:   func(ctx context.Context) error { return s.fetchPulsar(ctx, !s.cfg.PrepareLater) },
		missing: s.packages.Missing("Pulsar "+pulsarVersion, pulsarArtifact()),
		start: func(ctx context.Context, dir string, rec *record) error {
			b, err := s.newBroker(ctx, "standalone", dir, s.cfg.PulsarPort, s.cfg.PulsarAdminPort)
			if err != nil {
				return err
			}
			defer b.ReleasePorts()
			if err := s.startRecorded(ctx, rec, b); err != nil {
				return err
			}
			rec.Servers = []serverRecord{b.serverRecord()}
			rec.Env = []string{"PULSAR_URL=" + b.url(), "PULSAR_ADMIN_URL=" + b.adminURL()}
			return nil
		},
		check: checkBrokers,
	}
}

func (s *Stack) fetchPulsar(ctx context.Context, prepare bool) error {
	jvm, err := install.FindJava(ctx)
	if err != nil {
		return err
	}
	home, err := s.pulsarHome(ctx)
	if err != nil || !prepare {
		return err
	}
	return s.trainClassData(ctx, jvm, home)
}

func checkBrokers(ctx context.Context, rec *record) error {
	return checkWithRetries(ctx, rec, func(ctx context.Context, srv serverRecord) error {
		return pulsaradmin.New(srv.AdminURL, "").Healthy(ctx)
	})
}

// A PulsarServer is a running Pulsar: shared, given by the environment, or private to a test.
type PulsarServer struct {
	process.Server
	url   string
	admin *pulsaradmin.Client
}

// Erase deletes all data of a private server that was killed or stopped. The next Start has a new
// cluster of that name, at the same addresses.
func (s *PulsarServer) Erase(cluster string) error {
	b, ok := s.Daemon.(*broker)
	if !ok {
		return process.ErrNotOwned
	}
	b.cluster = cluster
	return errors.Join(os.RemoveAll(filepath.Join(b.dir, "metadata")), os.RemoveAll(filepath.Join(b.dir, "bookkeeper")))
}

// URL returns the service URL, pulsar://host:port.
func (s *PulsarServer) URL() string { return s.url }

// AdminURL returns the URL of the admin REST API, http://host:port.
func (s *PulsarServer) AdminURL() string { return s.admin.Base }

// Admin sends a request to the admin REST API: path starts with /admin/v2, in is sent as JSON and
// the answer decoded into out, each unless nil; a *string takes the answer as it is.
func (s *PulsarServer) Admin(ctx context.Context, method, path string, in, out any) error {
	return s.admin.Do(ctx, method, path, in, out)
}

// A broker is how to run one Pulsar standalone.
type broker struct {
	options
	cluster string
	dir     string
	home    string
	java    install.Java
	tests   bool // only tests use it
	// collector are the JVM's options for its garbage collector.
	collector string
	jvm       string          // further options of it
	ports     [3]process.Port // service, admin, bookkeeper
}

// newBroker prepares a broker in dir; its ports stay reserved until process.ReleasePorts.
func (s *Stack) newBroker(ctx context.Context, cluster, dir string, servicePort, adminPort int) (*broker, error) {
	jvm, err := install.FindJava(ctx)
	if err != nil {
		return nil, err
	}
	home, err := s.pulsarHome(ctx)
	if err != nil {
		return nil, err
	}
	b := &broker{cluster: cluster, dir: dir, home: home, java: jvm, tests: s.tests}
	b.conf, b.memory, b.collector, b.jvm = maps.Clone(s.cfg.PulsarConf), s.cfg.PulsarMemory, s.cfg.PulsarGC, s.cfg.PulsarJVM
	wanted := []struct {
		number int
		flag   string
	}{{servicePort, "-pulsar.port"}, {adminPort, "-pulsar.admin-port"}, {0, ""}}
	for i, w := range wanted {
		if w.number == 0 {
			b.ports[i], err = process.ReservePort(s.cache)
		} else {
			b.ports[i], err = process.FixedPort(s.cache, w.number, w.flag)
		}
		if err != nil {
			b.ReleasePorts()
			return nil, err
		}
	}
	return b, nil
}

func (b *broker) ReleasePorts() { process.ReleasePorts(b.ports[:]) }

func (b *broker) url() string      { return fmt.Sprintf("pulsar://127.0.0.1:%d", b.ports[0].Number) }
func (b *broker) adminURL() string { return fmt.Sprintf("http://127.0.0.1:%d", b.ports[1].Number) }
func (b *broker) Title() string    { return "cluster " + b.cluster + " at " + b.url() }
func (b *broker) LogPath() string  { return filepath.Join(b.dir, "logs", "broker.log") }

// standaloneConf returns the settings that differ from the distribution's standalone.conf.
func (b *broker) standaloneConf() map[string]string {
	conf := map[string]string{
		"clusterName":       b.cluster,
		"brokerServicePort": strconv.Itoa(b.ports[0].Number),
		"webServicePort":    strconv.Itoa(b.ports[1].Number),
		"advertisedAddress": "127.0.0.1",
		"bindAddress":       "127.0.0.1",
		// The distribution acknowledges before the disk has the entry, which would flatter every
		// durable figure.
		"journalSyncData": "true",
		// A topic without a client must survive: tests disconnect on purpose.
		"brokerDeleteInactiveTopicsEnabled": "false",
		// BookKeeper takes any free port without this, whatever --bookkeeper-port says.
		"allowEphemeralPorts": "true",
		// Ten milliseconds of added delivery latency otherwise.
		"managedLedgerNewEntriesCheckDelayInMillis": "0",
		"acknowledgmentAtBatchIndexLevelEnabled":    "true",
		// Tests remove their namespaces with everything in them.
		"forceDeleteNamespaceAllowed": "true",
		"forceDeleteTenantAllowed":    "true",
	}
	if b.tests {
		maps.Copy(conf, reclaim())
	}
	listeners := maps.Clone(b.listeners)
	if b.advertised != "" {
		if listeners == nil {
			listeners = make(map[string]string)
		}
		listeners["proxied"] = b.advertised
	}
	if len(listeners) > 0 {
		all := "direct:" + b.url()
		for _, name := range slices.Sorted(maps.Keys(listeners)) {
			all += "," + name + ":pulsar://" + listeners[name]
		}
		conf["advertisedListeners"], conf["internalListenerName"] = all, "direct"
	}
	maps.Copy(conf, b.conf)
	return conf
}

// quickStart has a JVM compile with its first compiler only: a server of tests lives for seconds, in
// which optimised code costs more processor time than it saves.
const quickStart = " -XX:TieredStopAtLevel=1"

// reclaim is what has BookKeeper give back the space of deleted namespaces within half a minute, for
// tests: they write gigabytes and keep nothing. The distribution takes hours, and keeps up to 12 GB
// of journals, which are files of 2 GB.
func reclaim() map[string]string {
	return map[string]string{
		"journalMaxSizeMB":  "64",
		"journalMaxBackups": "0",
		"flushInterval":     "20000", // milliseconds; journals can go then
		"logSizeLimit":      "67108864",
		"gcWaitTime":        "15000", // milliseconds
		// Logs of which 80 % or less is needed are written anew, by one kind of compaction.
		"minorCompactionInterval":  "0",
		"majorCompactionInterval":  "30", // seconds
		"majorCompactionThreshold": "0.8",
		"compactionRateByEntries":  "100000",
	}
}

// rewriteConf replaces the values of changed keys in a properties file and appends the keys it
// lacks.
func rewriteConf(original string, changes map[string]string) string {
	var out strings.Builder
	done := make(map[string]bool)
	for line := range strings.Lines(original) {
		line = strings.TrimRight(line, "\n")
		key, _, found := strings.Cut(line, "=")
		key = strings.TrimSpace(key)
		if value, changed := changes[key]; found && changed {
			line = key + "=" + value
			done[key] = true
		}
		out.WriteString(line + "\n")
	}
	var rest []string
	for key, value := range changes {
		if !done[key] {
			rest = append(rest, key+"="+value+"\n")
		}
	}
	slices.Sort(rest)
	return out.String() + strings.Join(rest, "")
}

// prepare writes the broker's configuration.
func (b *broker) prepare() error {
	original, err := os.ReadFile(filepath.Join(b.home, "conf", "standalone.conf"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(b.dir, "logs"), 0o755); err != nil {
		return err
	}
	conf := rewriteConf(string(original), b.standaloneConf())
	return os.WriteFile(filepath.Join(b.dir, "standalone.conf"), []byte(conf), 0o644)
}

// command runs the JVM itself with what bin/pulsar would pass. The process id is then the broker's
// from the first moment, a signal hits nothing else, and the class path is spelled out, which
// class-data sharing needs.
func (b *broker) command(extra ...string) (process.Command, error) {
	jars, err := filepath.Glob(filepath.Join(b.home, "lib", "*.jar"))
	if err != nil || len(jars) == 0 {
		return process.Command{}, errors.Join(errors.New("the Pulsar distribution has no lib/*.jar"), err)
	}
	for i, jar := range jars {
		jars[i] = filepath.Join("lib", filepath.Base(jar)) // relative to the working directory, the distribution
	}
	memory := cmp.Or(b.memory, os.Getenv("PULSAR_MEM"), "-Xms256m -Xmx1g -XX:MaxDirectMemorySize=1g")
	collector := cmp.Or(b.collector, os.Getenv("PULSAR_GC"), "-XX:+UseG1GC")
	if b.tests {
		collector += quickStart
	}
	logs := filepath.Join(b.dir, "logs")
	args := slices.Concat(strings.Fields(memory), strings.Fields(collector), strings.Fields(b.jvm), extra, []string{
		"-cp", strings.Join(jars, ":"),
		"-XX:ErrorFile=" + filepath.Join(logs, "jvm_crash_%p.log"),
		"-XX:+ExitOnOutOfMemoryError",
		"-Djava.net.preferIPv4Stack=true",
		"-Djute.maxbuffer=10485760",
		"--add-opens", "java.base/java.io=ALL-UNNAMED",
		"--add-opens", "java.base/java.util.zip=ALL-UNNAMED",
		"--add-opens", "java.base/java.nio=ALL-UNNAMED",
		"--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED",
		"--add-opens", "java.base/jdk.internal.platform=ALL-UNNAMED",
		"--add-opens", "java.management/sun.management=ALL-UNNAMED",
		"--add-opens", "jdk.management/com.sun.management.internal=ALL-UNNAMED",
		"--enable-native-access=ALL-UNNAMED",
		"-Dio.netty.tryReflectionSetAccessible=true",
		"-Dorg.apache.pulsar.shade.io.netty.tryReflectionSetAccessible=true",
		"-Dio.netty.recycler.maxCapacityPerThread=4096",
		"-Dpulsar.allocator.exit_on_oom=true",
		"-Dlog4j.shutdownHookEnabled=false",
		"-Dlog4j2.is.webapp=false",
		"-Dlog4j.configurationFile=" + filepath.Join(b.home, "conf", "log4j2.yaml"),
		"-Dpulsar.log.appender=Console",
		"-Dpulsar.log.dir=" + logs,
		"-Dbookkeeper.metadata.bookie.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
		"-Dbookkeeper.metadata.client.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
		"org.apache.pulsar.PulsarStandaloneStarter",
		"--config", filepath.Join(b.dir, "standalone.conf"),
		"--no-functions-worker", "--no-stream-storage",
		"--metadata-dir", filepath.Join(b.dir, "metadata"),
		"--bookkeeper-dir", filepath.Join(b.dir, "bookkeeper"),
		"--bookkeeper-port", strconv.Itoa(b.ports[2].Number),
	})
	c := process.Command{Path: b.java.Path, Args: args, Dir: b.home, Log: b.LogPath(), Env: []string{"OTEL_SEMCONV_STABILITY_OPT_IN=jvm"}}
	c.Keep = process.PortLocks(b.ports[:])
	return c, nil
}

// Start prepares and spawns the broker; it is not healthy yet.
func (b *broker) Start(_ context.Context, spawn func(process.Command) (process.ID, error)) (process.ID, error) {
	if err := b.prepare(); err != nil {
		return process.ID{}, err
	}
	c, err := b.command(b.classDataArgs()...)
	if err != nil {
		return process.ID{}, err
	}
	return spawn(c)
}

func (b *broker) serverRecord() serverRecord {
	return serverRecord{URL: b.url(), AdminURL: b.adminURL()}
}

func (b *broker) WaitHealthy(ctx context.Context, p process.ID) error {
	ctx, cancel := startContext(ctx)
	defer cancel()
	adm := pulsaradmin.New(b.adminURL(), b.token)
	last := errors.New("none")
	err := process.Poll(ctx, 20*time.Millisecond, func() (bool, error) {
		if !p.Alive() {
			return false, errEnded
		}
		last = adm.Healthy(ctx)
		if refused := (*pulsaradmin.StatusError)(nil); errors.As(last, &refused) && refused.Status == http.StatusUnauthorized {
			return false, fmt.Errorf("the admin API wants a token, pass one with Token: %w", last)
		}
		return last == nil, nil
	})
	return startError(b, err, last)
}
