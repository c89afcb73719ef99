package stack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/aviaryhq/aviary/test/stack/install"
	"github.com/aviaryhq/aviary/test/stack/process"
)

const kafkaVersion = "4.1.1"

func kafkaArtifact() install.Artifact {
	return install.Artifact{
		// The broker and its storage tool, and what writes their logs.
		Coordinates: "org.apache.kafka:kafka_2.13:" + kafkaVersion + " org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
		File:        "kafka-" + kafkaVersion,
		Folder:      "kafka-" + kafkaVersion,
		Sha512: "288ccc3a2075072bfa2ead8d040036e66f98740f2d3bdf5f4b2cf224758bcb06" +
			"7de6d8dc99cff294d917b81de745622c87ab4ee57bedd85672f66d15c6c9a7be",
		Size: 44_182_105,
	}
}

func (s *Stack) kafkaHome(ctx context.Context) (string, error) {
	return s.packages.Distribution(ctx, kafkaArtifact(), install.MavenJars)
}

func (s *Stack) kafkaService() service {
	return service{
		name: "kafka",
		fetch: func(ctx context.Context) error {
			if _, err := install.FindJava(ctx); err != nil {
				return err
			}
			_, err := s.kafkaHome(ctx)
			return err
		},
		missing: s.packages.Missing("Kafka "+kafkaVersion, kafkaArtifact()),
		start: func(ctx context.Context, dir string, rec *record) error {
			b, err := s.newKafka(ctx, dir, options{})
			if err != nil {
				return err
			}
			defer b.ReleasePorts()
			if err := s.startRecorded(ctx, rec, b); err != nil {
				return err
			}
			rec.Servers = []serverRecord{{URL: b.address(kafkaPlain)}}
			rec.Env = []string{"KAFKA_BROKERS=" + b.address(kafkaPlain)}
			return nil
		},
		check: func(ctx context.Context, rec *record) error {
			return checkWithRetries(ctx, rec, func(_ context.Context, srv serverRecord) error { return kafkaHealthy(srv.URL) })
		},
	}
}

// Kafka returns the shared Kafka: the one whose brokers AVIARY_TEST_KAFKA_BROKERS lists, with
// commas between, else the one of this checkout, under the rules of [Pulsar]. Topics are not
// created by being used: see [KafkaServer.Topic].
func Kafka(t testing.TB) *KafkaServer {
	t.Helper()
	const variable = "AVIARY_TEST_KAFKA_BROKERS"
	if brokers := os.Getenv(variable); brokers != "" {
		srv := &KafkaServer{brokers: strings.Split(brokers, ",")}
		awaitNamed(t, variable, func(context.Context) error { return kafkaHealthy(srv.brokers...) })
		return srv
	}
	return &KafkaServer{brokers: []string{shared(t, "kafka")[0].URL}}
}

// PrivateKafka starts a Kafka that only this test uses, under the rules of [PrivatePulsar].
func PrivateKafka(t testing.TB, opts ...Option) *KafkaServer {
	t.Helper()
	srv := &KafkaServer{}
	b := private(t, "kafka", &srv.Server, func(ctx context.Context, s *Stack, dir string) (*kafkaBroker, error) {
		return s.newKafka(ctx, dir, newOptions(opts))
	})
	srv.brokers = []string{b.address(kafkaPlain)}
	if b.advertised != "" {
		srv.upstream = b.address(kafkaProxied)
	}
	if b.secured {
		srv.secured = b.security()
	}
	return srv
}

// A KafkaServer is a running Kafka: shared, given by the environment, or private to a test.
type KafkaServer struct {
	process.Server
	brokers  []string
	upstream string
	secured  KafkaSecurity
}

// Brokers returns the addresses, host:port, of brokers that take clients without encryption and
// authentication.
func (s *KafkaServer) Brokers() []string { return slices.Clone(s.brokers) }

// Upstream returns the address that a proxy must forward to: clients that come to it are told the
// address given to [Advertise]. It is empty without that option.
func (s *KafkaServer) Upstream() string { return s.upstream }

// Security returns the listeners that [Secured] has added, or nothing.
func (s *KafkaServer) Security() KafkaSecurity { return s.secured }

// Topic creates a topic of that many partitions and deletes it when the test ends.
func (s *KafkaServer) Topic(t testing.TB, partitions int) string {
	t.Helper()
	return s.TopicWith(t, partitions, nil)
}

// TopicWith creates a topic with settings of its own, such as cleanup.policy. Clients find it when
// TopicWith returns: a broker says that it has created one before it knows it.
func (s *KafkaServer) TopicWith(t testing.TB, partitions int, conf map[string]string) string {
	t.Helper()
	topic := uniqueName(t)
	detail := &sarama.TopicDetail{NumPartitions: int32(partitions), ReplicationFactor: 1, ConfigEntries: make(map[string]*string)}
	for key, value := range conf {
		detail.ConfigEntries[key] = &value
	}
	if err := s.administer(func(a sarama.ClusterAdmin) error {
		if err := a.CreateTopic(topic, detail, false); err != nil {
			return err
		}
		return awaitLeaders(a, topic, partitions)
	}); err != nil {
		t.Fatalf("cannot create topic %s: %v", topic, err)
	}
	t.Cleanup(func() {
		if !s.Reachable() {
			return // its data goes with the server
		}
		err := s.administer(func(a sarama.ClusterAdmin) error { return a.DeleteTopic(topic) })
		if err != nil && !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			t.Logf("cannot delete topic %s: %v", topic, err)
		}
	})
	return topic
}

// awaitLeaders waits until all partitions of a topic have a leader, to which clients write.
func awaitLeaders(a sarama.ClusterAdmin, topic string, partitions int) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	return process.Poll(ctx, 10*time.Millisecond, func() (bool, error) {
		found, err := a.DescribeTopics([]string{topic})
		if err != nil || len(found) != 1 || len(found[0].Partitions) != partitions {
			return false, err
		}
		return !slices.ContainsFunc(found[0].Partitions, func(p *sarama.PartitionMetadata) bool {
			return p.Err != sarama.ErrNoError || p.Leader < 0
		}), nil
	})
}

func (s *KafkaServer) administer(do func(sarama.ClusterAdmin) error) error {
	conf := kafkaClientConfig()
	conf.Admin.Timeout = adminTimeout
	admin, err := sarama.NewClusterAdmin(s.brokers, conf)
	if err != nil {
		return err
	}
	return errors.Join(do(admin), admin.Close())
}

// kafkaClientConfig is for short visits: nothing is tried again behind the caller's back.
func kafkaClientConfig() *sarama.Config {
	conf := sarama.NewConfig()
	conf.ClientID = "aviary-stack"
	conf.Version = sarama.V3_6_0_0
	conf.Metadata.Retry.Max = 0
	conf.Net.DialTimeout, conf.Net.ReadTimeout, conf.Net.WriteTimeout = adminTimeout, adminTimeout, adminTimeout
	return conf
}

// kafkaHealthy tells whether a broker answers and knows itself as one.
func kafkaHealthy(brokers ...string) error {
	conf := kafkaClientConfig()
	conf.Net.DialTimeout, conf.Net.ReadTimeout = 5*time.Second, 5*time.Second // who waits for it asks again
	client, err := sarama.NewClient(brokers, conf)
	if err != nil {
		return err
	}
	if len(client.Brokers()) == 0 {
		err = errors.New("it knows no brokers")
	}
	return errors.Join(err, client.Close())
}

// The names of a broker's listeners, which are also the order of its ports.
const (
	kafkaPlain = iota
	kafkaController
	kafkaProxied
	kafkaSASL
	kafkaTLS
	kafkaMTLS
	kafkaListeners
)

// A kafkaBroker is how to run one Kafka that is broker and controller.
type kafkaBroker struct {
	options
	dir   string
	home  string
	java  install.Java
	ports []process.Port
	tests bool // only tests use it
}

func (s *Stack) newKafka(ctx context.Context, dir string, o options) (*kafkaBroker, error) {
	jvm, err := install.FindJava(ctx)
	if err != nil {
		return nil, err
	}
	home, err := s.kafkaHome(ctx)
	if err != nil {
		return nil, err
	}
	ports, err := process.ReservePorts(s.cache, kafkaListeners)
	if err != nil {
		return nil, err
	}
	return &kafkaBroker{options: o, dir: dir, home: home, java: jvm, ports: ports, tests: s.tests}, nil
}

func (b *kafkaBroker) address(listener int) string {
	return fmt.Sprintf("127.0.0.1:%d", b.ports[listener].Number)
}

func (b *kafkaBroker) Title() string   { return "kafka at " + b.address(kafkaPlain) }
func (b *kafkaBroker) LogPath() string { return filepath.Join(b.dir, "logs", "broker.log") }
func (b *kafkaBroker) confPath() string {
	return filepath.Join(b.dir, "server.properties")
}
func (b *kafkaBroker) ReleasePorts() { process.ReleasePorts(b.ports) }

func (b *kafkaBroker) WaitHealthy(ctx context.Context, p process.ID) error {
	return waitAnswers(ctx, b, p, func(context.Context) error { return kafkaHealthy(b.address(kafkaPlain)) })
}

func (b *kafkaBroker) properties() map[string]string {
	type listener struct {
		index          int
		name, protocol string
	}
	listeners := []listener{{kafkaPlain, "PLAIN", "PLAINTEXT"}, {kafkaController, "CONTROLLER", "PLAINTEXT"}}
	if b.advertised != "" {
		listeners = append(listeners, listener{kafkaProxied, "PROXIED", "PLAINTEXT"})
	}
	if b.secured {
		listeners = append(listeners, listener{kafkaSASL, "SASL", "SASL_PLAINTEXT"}, listener{kafkaTLS, "TLS", "SSL"}, listener{kafkaMTLS, "MTLS", "SSL"})
	}
	var bind, advertise, protocols []string
	for _, l := range listeners {
		address := b.address(l.index)
		bind = append(bind, l.name+"://"+address)
		if l.index == kafkaProxied {
			address = b.advertised
		}
		advertise = append(advertise, l.name+"://"+address)
		protocols = append(protocols, l.name+":"+l.protocol)
	}
	conf := map[string]string{
		"process.roles":                       "broker,controller",
		"node.id":                             "1",
		"controller.quorum.bootstrap.servers": b.address(kafkaController),
		"listeners":                           strings.Join(bind, ","),
		"advertised.listeners":                strings.Join(advertise, ","),
		"listener.security.protocol.map":      strings.Join(protocols, ","),
		"inter.broker.listener.name":          "PLAIN",
		"controller.listener.names":           "CONTROLLER",
		"log.dirs":                            filepath.Join(b.dir, "data"),
		"num.partitions":                      "1",
		// A topic that nobody created is a mistake that would go unnoticed.
		"auto.create.topics.enable": "false",
		// There is no second broker to keep copies.
		"offsets.topic.replication.factor":                 "1",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",
		// Fifty partitions each otherwise, which the first consumer has to wait for.
		"offsets.topic.num.partitions":         "4",
		"transaction.state.log.num.partitions": "4",
		// Three seconds of waiting for more members otherwise.
		"group.initial.rebalance.delay.ms": "0",
	}
	if b.secured {
		maps.Copy(conf, b.security().properties())
	}
	maps.Copy(conf, b.conf)
	return conf
}

const kafkaLogging = `Configuration:
  Appenders:
    Console:
      name: log
      PatternLayout: {pattern: "%d{ISO8601} %p %m (%c)%n"}
  Loggers:
    Root:
      level: INFO
      AppenderRef: {ref: log}
`

// Start writes the configuration anew each time, formats the storage the first time, and spawns the
// broker.
func (b *kafkaBroker) Start(ctx context.Context, spawn func(process.Command) (process.ID, error)) (process.ID, error) {
	if err := os.MkdirAll(filepath.Join(b.dir, "logs"), 0o755); err != nil {
		return process.ID{}, err
	}
	if b.secured {
		if err := b.security().prepare(b.dir); err != nil {
			return process.ID{}, err
		}
	}
	if err := os.WriteFile(b.confPath(), []byte(rewriteConf("", b.properties())), 0o600); err != nil {
		return process.ID{}, err
	}
	if err := os.WriteFile(filepath.Join(b.dir, "log4j2.yaml"), []byte(kafkaLogging), 0o644); err != nil {
		return process.ID{}, err
	}
	if _, err := os.Stat(filepath.Join(b.dir, "data", "meta.properties")); err != nil {
		if err := b.format(ctx); err != nil {
			return process.ID{}, err
		}
	}
	memory := b.memory
	if memory == "" {
		memory = os.Getenv("KAFKA_MEM")
	}
	if memory == "" {
		memory = "-Xmx512m"
	}
	if b.tests {
		memory += quickStart
	}
	args, err := b.arguments(strings.Fields(memory), "kafka.Kafka", b.confPath())
	if err != nil {
		return process.ID{}, err
	}
	return spawn(process.Command{Path: b.java.Path, Args: args, Dir: b.dir, Log: b.LogPath(), Keep: process.PortLocks(b.ports)})
}

// arguments makes the command line of one of Kafka's programs.
func (b *kafkaBroker) arguments(flags []string, class string, args ...string) ([]string, error) {
	jars, err := filepath.Glob(filepath.Join(b.home, "*.jar"))
	if err != nil || len(jars) == 0 {
		return nil, errors.Join(errors.New("the Kafka distribution has no *.jar"), err)
	}
	return slices.Concat(flags, []string{
		"-cp", strings.Join(jars, ":"),
		"-XX:+UseG1GC",
		"-XX:ErrorFile=" + filepath.Join(b.dir, "logs", "jvm_crash_%p.log"),
		"-XX:+ExitOnOutOfMemoryError",
		"-Djava.awt.headless=true",
		"-Djava.net.preferIPv4Stack=true",
		"-Dlog4j2.configurationFile=" + filepath.Join(b.dir, "log4j2.yaml"),
		class,
	}, args), nil
}

// format gives a new broker its identity. SCRAM users must be known from here on: their passwords
// are metadata.
func (b *kafkaBroker) format(ctx context.Context) error {
	args := []string{"format", "--standalone", "--cluster-id", "YXZpYXJ5LXN0YWNrLTAwMA", "--config", b.confPath()}
	if b.secured {
		for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
			args = append(args, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, kafkaUser, kafkaPassword))
		}
	}
	args, err := b.arguments([]string{"-Xmx128m", "-XX:TieredStopAtLevel=1"}, "kafka.tools.StorageTool", args...)
	if err != nil {
		return err
	}
	out, err := process.Job{}.Run(ctx, append([]string{b.java.Path}, args...)...)
	if err == nil || ctx.Err() != nil {
		return err
	}
	// The reason stands last, after all settings.
	return fmt.Errorf("cannot format the storage of %s: %w: %s", b.Title(), err, process.LastLine(out))
}
