package servers

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// Broker is a Pulsar that only this run uses, on the same machine.
type Broker struct {
	Url, Admin string
	Remote     string // URL of the second cluster; empty without Options.Geo
	Namespace  string // the replicated namespace; empty without Options.Geo
	Listener   string // the advertised listener that clients ask for
	Journal    string // folder of BookKeeper's journal
	Stop       func()
}

// Options are the settings of a broker.
type Options struct {
	Name   string // unique among the brokers of one run
	Port   int    // default: any free one
	Conf   map[string]string
	Memory string // options of the JVM for its memory; default: the project's
	GC     string // options of the JVM for its garbage collector; default: the project's
	JVM    string // more options of the JVM
	Geo    bool   // starts two clusters that replicate to each other
}

// StartBroker starts a broker with the project's settings, which the options can override. Its
// journal is synced by default.
func StartBroker(ctx context.Context, o Options) (*Broker, error) {
	cfg := stack.Config{
		Log: os.Stderr, Owned: true, Checkout: fmt.Sprintf("bench-%d-%s", os.Getpid(), o.Name), PulsarPort: o.Port,
		PulsarConf: o.Conf, PulsarMemory: o.Memory, PulsarGC: o.GC, PulsarJVM: o.JVM,
	}
	s, err := stack.New(cfg)
	if err != nil {
		return nil, err
	}
	b := &Broker{Journal: filepath.Join(s.Dir(), "pulsar", "bookkeeper"), Stop: func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Down(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}}
	service := "pulsar"
	if o.Geo {
		service = "pulsar-geo"
	}
	lines, err := s.Up(ctx, service)
	if err != nil {
		b.Stop()
		return nil, err
	}
	for _, line := range lines {
		switch name, v, _ := strings.Cut(line, "="); name {
		case "PULSAR_URL", "PULSAR_A_URL":
			b.Url = v
		case "PULSAR_ADMIN_URL", "PULSAR_A_ADMIN_URL":
			b.Admin = v
		case "PULSAR_B_URL":
			b.Remote = v
		case "PULSAR_GEO_NAMESPACE":
			b.Namespace = v
		}
	}
	return b, nil
}

// StartFarBroker starts a broker that clients reach through line.
func StartFarBroker(ctx context.Context, line *proxy.Proxy, o Options) (*Broker, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	o.Port = l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return nil, err
	}
	direct := "pulsar://127.0.0.1:" + strconv.Itoa(o.Port)
	conf := map[string]string{
		"advertisedListeners": "direct:" + direct + "," + proxy.Listener + ":pulsar://" + line.Addr(), "internalListenerName": "direct",
	}
	maps.Copy(conf, o.Conf)
	o.Conf, o.Name = conf, o.Name+"-far"
	b, err := StartBroker(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := line.Forward(b.Url); err != nil {
		b.Stop()
		return nil, err
	}
	b.Url, b.Listener = "pulsar://"+line.Addr(), proxy.Listener
	return b, nil
}

// StoredBytes asks the broker what the topic of p takes in storage.
func (b *Broker) StoredBytes(ctx context.Context, p measure.Piece) (float64, error) {
	var stats struct {
		StorageSize float64 `json:"storageSize"`
	}
	kind := "/stats"
	if p.Partitions > 0 {
		kind = "/partitioned-stats"
	}
	err := Get(ctx, b.TopicURL(p.Topic)+kind, &stats)
	return stats.StorageSize, err
}

// Fresh names a topic that nothing was written to.
func Fresh(part string) string {
	return "persistent://public/default/bench-" + part + "-" + rand.Text()
}

// TopicURL is the address of a topic in the admin API.
func (b *Broker) TopicURL(topic string) string {
	return b.Admin + "/admin/v2/" + strings.Replace(topic, "://", "/", 1)
}

// Create makes the partitioned topic of p. Topics without partitions come with their publishers.
func (b *Broker) Create(ctx context.Context, p measure.Piece) error {
	if p.Partitions == 0 {
		return nil
	}
	return Put(ctx, b.TopicURL(p.Topic)+"/partitions", p.Partitions)
}
