package rabbitmq

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// system is the name of RabbitMQ in the provenance of messages.
const system = "rabbitmq"

// Values of keys.
const (
	authPlain    = "plain"
	authExternal = "external"

	declareVerify = "verify"
	declareCreate = "create"

	typeClassic = "classic"
	typeQuorum  = "quorum"
	typeStream  = "stream"
)

// Connection is how to reach a broker.
type Connection struct {
	// URL is amqp://host:port/vhost, or amqps:// for TLS, without user name and password. The
	// virtual host is percent-encoded; the default is "/". Default amqp://127.0.0.1:5672/.
	URL string `yaml:"url"`
	// Auth is plain (user name and password) or external (the client certificate; the broker needs
	// rabbitmq_auth_mechanism_ssl). Default plain.
	Auth string `yaml:"auth"`
	// Username is the user name for auth plain. Default guest, which RabbitMQ accepts from its own
	// machine only.
	Username string `yaml:"username"`
	// Password is the password for auth plain. Give either this or password_file. Default guest.
	Password secret.String `yaml:"password"`
	// PasswordFile holds the password. It is read at each connection. Default: none.
	PasswordFile string `yaml:"password_file"`
	// TLS is for amqps:// only.
	TLS connector.TLS `yaml:"tls"`
	// Heartbeat is the longest time without data on a healthy connection: after about 1.5 times
	// this time the connection counts as lost. In whole seconds. The broker's own heartbeat applies
	// if it is shorter. Default 10s.
	Heartbeat time.Duration `yaml:"heartbeat"`
	// Name is the name of the connection in RabbitMQ's management, followed by "source" or "sink".
	// Default pigeonhole.
	Name string `yaml:"name"`
}

// SourceConfig is where messages are taken from.
type SourceConfig struct {
	Connection `yaml:",inline"`
	// Cluster is the name of the cluster in the provenance of its messages. Default rabbitmq.
	Cluster string `yaml:"cluster"`
	// Queues are the queues to read, each with its own pipelines.
	Queues []Queue `yaml:"queues"`
	// Prefetch bounds how many messages of one channel may be delivered and not yet acknowledged,
	// from 1 to 65535. Default 2000.
	Prefetch int `yaml:"prefetch"`
	// PrefetchBytes bounds the bytes of delivered and unacknowledged messages, of all channels
	// together; each channel has an equal share. AMQP counts messages only: a channel begins with
	// one message (classic queues and streams: with as many as fit if each has 1MiB), and changes
	// the number when it knows their size. Each change returns deliveries that are not in flight to
	// the queue, and the broker delivers them again. If messages suddenly grow, the bytes exceed
	// the bound for a moment. At least 1MiB. Default 32MiB.
	PrefetchBytes config.Bytes `yaml:"prefetch_bytes"`
	// ParallelConsumers is the number of consumers of each queue, each with its own channel, from 1
	// to 64. One consumer keeps the order of the queue if the queue has no other consumer, or has
	// x-single-active-consumer. Several are faster if the sink is slow, but lose the order. Default
	// 1.
	ParallelConsumers int `yaml:"parallel_consumers"`
	// Declare is verify (a queue must exist; if type or arguments are given, it must have them and
	// be durable) or create (a missing queue is created, durable, with its bindings; an existing
	// one is verified). AMQP can verify an exchange, but not a binding. Default verify.
	Declare string `yaml:"declare"`
	// DrainTimeout bounds how long a stop waits for messages in flight. Messages that are not
	// stored by then stay in the queue. Default 10s.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
}

// Queue is a queue or stream.
type Queue struct {
	// Name is the name of the queue or stream.
	Name string `yaml:"name"`
	// Type is classic, quorum or stream. It must be given for a stream. Default: classic if the
	// queue is created; otherwise classic or quorum.
	Type string `yaml:"type"`
	// Arguments are the arguments of the declaration, such as x-max-length: texts, numbers,
	// booleans and times. To verify a queue, give all its arguments. Default: none.
	Arguments map[string]any `yaml:"arguments"`
	// Bindings are the bindings of the queue to exchanges, which must exist. Default: none.
	Bindings []Binding `yaml:"bindings"`
	// Offset is the place where reading a stream begins: first, last (the last chunk), next (new
	// messages only) or the number of a message. RabbitMQ stores no position for AMQP 0-9-1
	// consumers. After a lost connection the source continues after the last committed message. A
	// new process, and a route that was changed or resumed after a failure, begin at this place
	// again: first and a number replicate all messages from there again; last and next skip the
	// messages in between. Default first.
	Offset string `yaml:"offset"`
}

// Binding is a way from an exchange to the queue.
type Binding struct {
	// Exchange is the name of the exchange.
	Exchange string `yaml:"exchange"`
	// Key is the routing key or pattern. Default: empty.
	Key string `yaml:"key"`
	// Arguments are the arguments of the binding, for example for a headers exchange. Default:
	// none.
	Arguments map[string]any `yaml:"arguments"`
}

// SinkConfig is where messages are published.
type SinkConfig struct {
	Connection `yaml:",inline"`
	// Cluster is the name of the cluster, or of the virtual host, in the hops of messages. Sources
	// of the same queues must have the same name. Default rabbitmq.
	Cluster string `yaml:"cluster"`
	// Exchange is the exchange to publish to. It must exist. The route's destination is then the
	// routing key. Default: empty, the default exchange, where the routing key is the name of a
	// queue.
	Exchange string `yaml:"exchange"`
	// Mandatory makes the broker return messages that no queue takes: they are refused
	// (unroutable). Without it the broker drops such messages. Default true.
	Mandatory bool `yaml:"mandatory"`
	// Window bounds the published and unconfirmed messages of one channel, from 1 to 65535.
	// RabbitMQ confirms in batches, later under load. Default 8000.
	Window int `yaml:"window"`
	// WindowBytes bounds the bytes of published and unconfirmed messages, of all channels together;
	// a larger message is sent alone. During a memory alarm of the broker they can take twice this
	// memory. Default 16MiB.
	WindowBytes config.Bytes `yaml:"window_bytes"`
	// Channels is the number of channels to publish on, from 1 to 64. All messages of one
	// destination go through one channel, in order. Default 4.
	Channels int `yaml:"channels"`
	// MaxMessageBytes is the broker's max_message_size: larger messages are refused without a
	// request to the broker. Default 16MiB, as in RabbitMQ 4; RabbitMQ 3 has 128MiB.
	MaxMessageBytes config.Bytes `yaml:"max_message_bytes"`
	// Impersonate sends the property user-id of messages from RabbitMQ unchanged: the broker
	// accepts it only from users with the tag impersonator. Otherwise a user-id other than this
	// connection's user goes into the header pigeonhole.user_id. Default false.
	Impersonate bool `yaml:"impersonate"`
}

func defaultConnection() Connection {
	return Connection{
		URL: "amqp://127.0.0.1:5672/", Auth: authPlain, Username: "guest", Password: "guest",
		Heartbeat: 10 * time.Second, Name: "pigeonhole",
	}
}

// DefaultSourceConfig returns the defaults; queues are missing.
func DefaultSourceConfig() SourceConfig {
	return SourceConfig{
		Connection: defaultConnection(), Cluster: system, Prefetch: 2000, PrefetchBytes: 32 * config.MiB,
		ParallelConsumers: 1, Declare: declareVerify, DrainTimeout: 10 * time.Second,
	}
}

// channels returns how many channels the source has.
func (c SourceConfig) channels() int { return max(len(c.Queues)*c.ParallelConsumers, 1) }

// DefaultSinkConfig returns the defaults.
func DefaultSinkConfig() SinkConfig {
	return SinkConfig{
		Connection: defaultConnection(), Cluster: system, Mandatory: true, Window: 8000, WindowBytes: 16 * config.MiB, Channels: 4,
		MaxMessageBytes: 16 * config.MiB,
	}
}

// System returns RabbitMQ for Pigeonhole's table of systems.
func System() connector.System {
	return connector.System{
		Name:   system,
		Source: func() connector.SourceConfig { c := DefaultSourceConfig(); return &c },
		Sink:   func() connector.SinkConfig { c := DefaultSinkConfig(); return &c },
	}
}

func checkArguments(path string, arguments map[string]any) error {
	for name, v := range argumentTable(arguments) {
		switch v.(type) {
		case nil, bool, string, int64, float64, time.Time:
		default:
			return config.Fault(path, "%s: must be a text, a number, a boolean or a time", name)
		}
	}
	return nil
}

// Validate returns every fault of the connection's keys.
func (c Connection) Validate() error {
	errs := []error{
		config.CheckOneOf("auth", c.Auth, authPlain, authExternal),
		config.Require(c.Auth != authPlain || c.Username != "", "username", "must not be empty"),
		config.Require(c.Auth != authExternal || c.TLS.CertFile != "", "auth", "external needs tls.cert_file and tls.key_file"),
		config.Require(c.PasswordFile == "" || c.Password == "" || c.Password == defaultConnection().Password,
			"password_file", "give password or password_file, not both"),
		config.CheckFile("password_file", c.PasswordFile), c.TLS.Check("tls"),
		config.Require(c.Heartbeat >= time.Second && c.Heartbeat <= 18*time.Hour && c.Heartbeat%time.Second == 0,
			"heartbeat", "must be whole seconds, at least 1s, got %s", c.Heartbeat),
	}
	if _, err := amqp.ParseURI(c.URL); err != nil { // the library's text may hold a password
		return errors.Join(append(errs, config.Fault("url", "must be amqp://host:port/vhost or amqps://host:port/vhost"))...)
	}
	return errors.Join(append(errs,
		config.Require(!strings.Contains(c.URL, "@"), "url", "must not hold a user name or password: use username and password"),
		config.Require(!strings.Contains(c.URL, "?"), "url", "must not hold parameters: use the keys beside it"),
		config.Require(c.TLS == connector.TLS{} || strings.HasPrefix(c.URL, "amqps:"),
			"tls", "has no effect without amqps:// in url"))...)
}

// Validate returns every fault of the keys besides the connection's.
func (c SourceConfig) Validate() error {
	errs := []error{
		config.CheckOneOf("declare", c.Declare, declareVerify, declareCreate),
		config.CheckRange("prefetch", c.Prefetch, 1, 65535),
		config.CheckAtLeast("prefetch_bytes", c.PrefetchBytes, config.MiB),
		config.CheckRange("parallel_consumers", c.ParallelConsumers, 1, 64),
		config.Require(c.Cluster != "", "cluster", "must not be empty"),
		config.Require(len(c.Queues) > 0, "queues", "must name at least one queue"),
		config.CheckPositive("drain_timeout", c.DrainTimeout),
	}
	seen := map[string]bool{}
	for i, q := range c.Queues {
		at := fmt.Sprintf("queues[%d]", i)
		errs = append(errs, config.Require(!seen[q.Name], at+".name", "%q occurs twice", q.Name),
			config.Require(q.Type != typeStream || c.ParallelConsumers <= 1,
				at+".type", "a stream allows parallel_consumers 1 only: each channel would read all of it"))
		seen[q.Name] = true
	}
	return errors.Join(errs...)
}

// Validate returns every fault of the queue's keys.
func (q Queue) Validate() error {
	errs := []error{
		config.Require(q.Name != "" && len(q.Name) <= maxShort, "name", "must have 1 to %d bytes", maxShort),
		config.Require(q.Arguments[argQueueType] == nil, "arguments", "use type instead of %s", argQueueType),
		checkArguments("arguments", q.Arguments),
	}
	if q.Type != "" {
		errs = append(errs, config.CheckOneOf("type", q.Type, typeClassic, typeQuorum, typeStream))
	}
	for i, b := range q.Bindings {
		at := fmt.Sprintf("bindings[%d]", i)
		errs = append(errs,
			config.Require(b.Exchange != "" && len(b.Exchange) <= maxShort, at+".exchange",
				"must have 1 to %d bytes: every queue is bound to the default exchange by its name", maxShort),
			config.Require(len(b.Key) <= maxShort, at+".key", "must have at most %d bytes", maxShort),
			checkArguments(at+".arguments", b.Arguments))
	}
	switch _, err := strconv.ParseUint(q.Offset, 10, 63); {
	case q.Offset != "" && q.Type != typeStream:
		errs = append(errs, config.Fault("offset", "has no effect without type stream"))
	case err != nil && !slices.Contains([]string{"", "first", "last", "next"}, q.Offset):
		errs = append(errs, config.Fault("offset", "must be first, last, next or a number, got %q", q.Offset))
	}
	return errors.Join(errs...)
}

// Validate returns every fault of the keys besides the connection's.
func (c SinkConfig) Validate() error {
	return errors.Join(
		config.CheckRange("window", c.Window, 1, 65535),
		config.CheckRange("channels", c.Channels, 1, 64),
		config.Require(c.Cluster != "", "cluster", "must not be empty"),
		config.Require(len(c.Exchange) <= maxShort, "exchange", "must have at most %d bytes", maxShort),
		config.CheckPositive("window_bytes", c.WindowBytes),
		config.CheckPositive("max_message_bytes", c.MaxMessageBytes),
	)
}

const (
	// connectionMemory is a connection's buffers: those of frames and of the socket.
	connectionMemory = 2*frameMax + readBuffer + 2*maxReusedBuffer
	// tableMemory is a message's table of headers, with what the library keeps of its delivery or
	// confirm.
	tableMemory = 1 << 10
)

// Memory is what the source may hold besides the messages that the route has taken: the messages
// that the broker has delivered ahead to its channels.
func (c SourceConfig) Memory(int, int64) int64 {
	return connectionMemory + int64(c.PrefetchBytes) + tableMemory*int64(c.channels())*int64(c.Prefetch)
}

// Memory is what the sink may hold of inFlight bytes in messages that the route has given it: a
// second copy of its window, as under an alarm of the broker, what it keeps of each message (in a
// ring of up to twice as many), and room for returns, which is allocated at the start.
func (c SinkConfig) Memory(messages int, inFlight int64) int64 {
	perMessage := tableMemory + 2*int64(reflect.TypeFor[pendingMessage]().Size())
	slots := int64(c.Channels) * int64(c.Window)
	return connectionMemory + min(int64(c.WindowBytes), inFlight) + perMessage*min(slots, int64(messages)) +
		int64(reflect.TypeFor[amqp.Return]().Size())*slots
}
